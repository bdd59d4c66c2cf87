"""What a model is told to do: put together once, at admission, and stored on the job."""

from __future__ import annotations

from typing import Final

CONTEXT_HEADING: Final = "\n\nContext:\n"


def prompt(goal: str, context: str) -> str:
    """Return the request of a job in the person's own words, without instructions of ours."""
    return f"{goal}{CONTEXT_HEADING}{context}" if context else goal
