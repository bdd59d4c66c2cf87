"""What a model is told of a job: the prompt, and what was said and done about it so far.

Everything is read from committed rows, of all generations. A call without an outcome gets one
that says so, as in a conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from recovery.blanks import shows_something
from turns import history
from turns.history import History, Pair, Said
from turns.providers.types import AssistantText, ToolSchema
from turns.requests import Requests
from work.models import WorkJob, WorkProviderStep, WorkStep

_COMMON: Final = (
    "You work alone on a job that a person has delegated to you; nobody answers questions "
    "while you work. Call tools until the job is done, then write your report without calling "
    "any: what you found or did, what is missing, and how sure you are. The report is all that "
    "the person sees, so it must stand by itself. Write in the language of the job, honestly "
    "and without padding. If a tool's result says that its outcome is unknown, say so in the "
    "report and do not call it again."
)
INSTRUCTIONS: Final[Mapping[str, str]] = {
    WorkJob.Kind.DEEP_WORK: _COMMON,
    WorkJob.Kind.CODING: (
        f"{_COMMON} Read before you change anything, keep to the style you find, run the "
        "checks there are, and commit what you did with a message that says why. Where the "
        "outcome of a change is unknown, look before you go on."
    ),
}

# How the requests of a job are made: of its kind, the tools it may use, and what the model
# should know about where it works.
AskingFor = Callable[[str, Sequence[ToolSchema], str], Requests]


def from_settings(kind: str, tools: Sequence[ToolSchema], briefing: str) -> Requests:
    """Return how this installation asks its model about jobs of `kind`."""
    instructions = f"{INSTRUCTIONS[kind]}\n{briefing}".strip()
    return Requests.from_settings(tools, instructions=instructions)


def read(job: WorkJob, max_bytes: int) -> History:
    """Return what the provider is told for the job's next request. The prompt is never cut."""
    so_far = Said(tuple(_parts(job.pk)))
    return history.compose((), question=job.prompt, answer=so_far, max_bytes=max_bytes)


def _parts(job_id: int) -> Iterator[AssistantText | Pair]:
    """Yield the words of each response, then the calls it made."""
    calls = list(WorkStep.objects.filter(job_id=job_id).order_by("sequence"))
    for step in WorkProviderStep.objects.filter(job_id=job_id).order_by("sequence"):
        if shows_something(step.text):  # some services refuse a blank message
            yield AssistantText(step.text)
        yield from history.pairs(step, calls)
