"""`start_job`: delegate work that goes on after the turn, once for each call."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field

from recovery.errors import ErrorCode, Refused, StaleFence
from turns.tools.registry import Arguments, Effect, Invocation, State, Tool, ToolFailed
from work import bounds
from work.models import Computer
from work.transitions import JobAsk, admit_job

# Nothing is wrong with the call; later or elsewhere it might be granted.
STATES: Final = {
    ErrorCode.PAUSED: State.UNAVAILABLE,
    ErrorCode.JOB_LIMIT_REACHED: State.REFUSED,
    ErrorCode.JOB_KIND_UNAVAILABLE: State.UNAVAILABLE,
    ErrorCode.OUTSIDE_ROOTS: State.REFUSED,
}


class StartJob(Arguments):
    """What is to be done, and where."""

    kind: Literal["deep_work", "coding"]
    goal: Annotated[str, Field(min_length=1, max_length=bounds.GOAL_MAX_BYTES)]
    context: Annotated[str, Field(max_length=bounds.CONTEXT_MAX_BYTES)] = ""
    computer: Annotated[
        str,
        Field(max_length=bounds.COMPUTER_NAME_MAX_CHARS, description="for coding: its name"),
    ] = ""
    directory: Annotated[
        str, Field(max_length=bounds.PATH_MAX_BYTES, description="for coding: where to work")
    ] = ""


def start_job(invocation: Invocation[StartJob]) -> str:
    """Admit the job; return its id, as JSON. The call's key makes it one job."""
    asked = invocation.arguments
    ask = JobAsk(kind=asked.kind, goal=asked.goal, context=asked.context)
    # models fill in fields that are not for them: deep work is done nowhere
    if asked.kind == "coding":
        computer_id = _computer_id(invocation.owner_id, asked)
        ask = replace(ask, computer_id=computer_id, cwd=asked.directory)
    try:
        admission = admit_job(
            invocation.owner_id,
            invocation.conversation_id,
            ask,
            client_key=str(invocation.key),
            call=invocation.key,
        )
    except StaleFence:
        raise ToolFailed(ErrorCode.CANCELLED, state=State.CANCELLED) from None
    except Refused as refused:
        raise _told(refused.code, invocation.owner_id) from None
    return json.dumps({"disposition": "started", "job_id": str(admission.job.pk)})


def _computer_id(person_id: int, asked: StartJob) -> int:
    """Return the computer that is meant: the one of this name, or the only one there is.

    Raises:
        ToolFailed: it is not clear which. The result names those there are.
    """
    computers = list(_computers(person_id))
    if not asked.computer and len(computers) == 1:
        return computers[0].pk
    for computer in computers:
        if computer.name.casefold() == asked.computer.strip().casefold():
            return computer.pk
    code = ErrorCode.NOT_FOUND if asked.computer else ErrorCode.COMPUTER_REQUIRED
    raise _told(code, person_id)


def _told(code: ErrorCode, person_id: int) -> ToolFailed:
    """Return the refusal, with where jobs may work if that is what was wrong."""
    result = str(code.label)
    if code in {ErrorCode.NOT_FOUND, ErrorCode.COMPUTER_REQUIRED, ErrorCode.OUTSIDE_ROOTS}:
        places = {computer.name: computer.roots for computer in _computers(person_id)}
        result = json.dumps(
            {"problem": result, "computers": places or "none is set up for jobs"},
            ensure_ascii=False,
        )
    return ToolFailed(code, state=STATES.get(code, State.FAILED), result=result)


def _computers(person_id: int) -> list[Computer]:
    mine = Computer.objects.filter(person_id=person_id, revoked_at__isnull=True)
    return list(mine.order_by("pk"))


TOOL: Final = Tool(
    name="start_job",
    description=(
        "Start work that goes on in the background after this answer. `deep_work` thinks a "
        "larger task through; `coding` changes a repository on one of the person's computers, "
        "on a branch of its own. The job knows only `goal` and `context` and this conversation "
        "up to here. Its report comes into the conversation when it ends: do not wait for it, "
        "and do not claim that it is done. Use it only when the person asks for such work."
    ),
    arguments=StartJob,
    effect=Effect.REVERSIBLE,
    call=start_job,
    runs="in_database_thread",
    timeout_seconds=20,
)
