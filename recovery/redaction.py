"""Describing a failure without repeating what it says.

The text of an exception may quote rows, prompts or a provider. Its class, the SQLSTATE, the
name of our own constraint and our own code never do.
"""

from __future__ import annotations

from typing import Final

from recovery.database_errors import database_cause
from recovery.errors import BoundExceeded, ProviderFailed, Refused

DESCRIPTION_MAX_CHARS: Final = 200


def describe(error: BaseException) -> str:
    """Return class, code and constraint of `error`, nothing else, in at most 200 characters."""
    words = [type(error).__qualname__]
    if isinstance(error, BoundExceeded | Refused | ProviderFailed):
        words.append(error.code.value)
    cause = database_cause(error)
    if cause is not None:
        words += [word for word in (cause.sqlstate, cause.diag.constraint_name) if word]
    return " ".join(words)[:DESCRIPTION_MAX_CHARS]
