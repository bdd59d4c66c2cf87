"""What jobs and computers look like from outside: API answers and live frames."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, computed_field

from turns.schemas import Moment, Shape, Step, sentence

Kind = Literal["deep_work", "coding", "computer"]
State = Literal[
    "queued", "running", "completed", "failed", "cancelled", "interrupted", "budget_exhausted"
]


class JobCore(Shape):
    """A delegated job and how far it is."""

    id: str
    conversation_id: str
    kind: Kind
    goal: str
    state: State
    error_code: str | None
    cancel_requested: bool
    generation: int
    attempts: int = Field(description="How often a worker has claimed it.")
    report: str | None = Field(
        description="What a completed job reports; otherwise how it ended, in our words."
    )
    message_id: str | None = Field(description="The message that shows the report.")
    branch: str | None = Field(
        description="The branch a coding job works on; after its end, the one its work is on."
    )
    commit: str | None = Field(
        description="The newest commit a coding job has made itself. What is left over at its "
        "end is committed after it; the report says so."
    )
    steps: tuple[Step, ...] = Field(
        description="In the order they were made. `kind` and `id` together name one."
    )
    usage: dict[str, int] | None
    created_at: Moment
    finished_at: Moment | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error_message(self) -> str | None:
        """The public sentence of the error code."""
        return sentence(self.error_code)


class JobShape(JobCore):
    """A job with what was asked for: sent again under another key, it is the same request."""

    context: str
    computer_id: str | None
    agent: str
    cwd: str
    wall_clock_seconds: int


class JobView(JobCore):
    """A job with all the page shows of it. Of its steps, the newest."""

    computer: str | None = Field(description="The computer's name at admission.")
    steps_done: int = Field(description="Tool calls whose outcome is known.")
    elapsed_seconds: float = Field(description="Since the first claim, or the request.")


class ComputerShape(Shape):
    """A place where a person's jobs may work."""

    id: str
    name: str
    roots: tuple[str, ...]
    tier: Literal["probe", "curated", "shell"]
    checks: tuple[str, ...] = Field(description="Names of the checks a job may run there.")
    created_at: Moment
