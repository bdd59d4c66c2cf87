"""The calls of a response as they are stored, and what is kept of a result.

A turn and a job keep their steps in tables of their own and by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import uuid4

from django.db import DatabaseError, IntegrityError
from django.db.models.functions import Now
from psycopg.errors import ProgramLimitExceeded

from recovery.bounds import cut_utf8, storable
from recovery.constraints import violated_constraint
from recovery.errors import BoundExceeded, ErrorCode, Refused
from turns import bounds
from turns.digests import arguments_digest, digest
from turns.limits import Limits
from turns.models import ToolStep
from turns.models.steps import ProviderStepFields, ToolStepFields

CUT_MARK: Final = "\n[cut: the result was {bytes} bytes]"
# what has not come of a call that waits to be started
_WAITING: Final = {
    "state": ToolStep.State.REQUESTED,
    "error_code": "",
    "result": "",
    "result_digest": "",
    "result_bytes": 0,
}

# What bounds the names and counts that a provider gives: rules of both tables of steps.
_PROVIDER_BOUNDS: Final = ("_ids_bounded", "_response_id_bounded", "_usage_bounded")

StepT = TypeVar("StepT", bound=ToolStepFields)


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call of a completed response, and what was decided about it before it is stored.

    `state` is `requested` for a call that may start. A call that will not (unknown tool, bad
    arguments) is stored ended, with its code and what the model is told about it.
    """

    call_id: str
    item_id: str
    name: str
    arguments: str
    effect: ToolStep.Effect = ToolStep.Effect.READ
    state: ToolStep.State = ToolStep.State.REQUESTED
    error_code: ErrorCode | None = None
    result: str = ""


@dataclass(frozen=True, slots=True)
class BoundedResult:
    """What is kept of a result, and the digest and size of the whole."""

    text: str
    digest: str
    bytes: int


def bounded_result(result: str) -> BoundedResult:
    """Return `result` as it can be stored: within its bound, or cut with a mark."""
    result = storable(result)
    size = len(result.encode())
    text = result
    if size > bounds.TOOL_RESULT_MAX_BYTES:
        mark = CUT_MARK.format(bytes=size)
        text = cut_utf8(result, bounds.TOOL_RESULT_MAX_BYTES - len(mark)) + mark
    return BoundedResult(text, digest(result), size)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of one call, ready to be stored. `error_code` is empty for a success alone."""

    step_id: int
    state: ToolStep.State
    error_code: str
    result: BoundedResult

    @classmethod
    def of(
        cls,
        step_id: int,
        state: ToolStep.State,
        *,
        result: str = "",
        error_code: ErrorCode | None = None,
    ) -> CallOutcome:
        """Return it; a result past its bound is cut with a mark, its digest is of the whole."""
        has_succeeded = state == ToolStep.State.SUCCEEDED
        code = "" if has_succeeded else (error_code or ErrorCode.TOOL_FAILED).value
        return cls(step_id, state, code, bounded_result(result))

    def require_stored_in(self, step: ToolStepFields) -> None:
        """Return when the ended `step` has this very outcome.

        Raises:
            Refused: `tool_outcome_conflict`, it has another.
        """
        stored = step.state, step.error_code, step.result_digest
        if stored != (self.state, self.error_code, self.result.digest):
            raise Refused(ErrorCode.TOOL_OUTCOME_CONFLICT)


def store_calls(
    model: type[StepT],
    calls: Sequence[RequestedCall],
    *,
    of: Mapping[str, int],
    limits: Limits,
    born: Mapping[str, Any],
) -> list[StepT]:
    """Store the calls of one response and return their steps in order, once each.

    `of` names the work they belong to, `born` what each new step has beside its call. A call id
    seen before in this work with the same identity returns the step already there. Calls past
    the limit are stored failed with `tool_call_limit_reached`.

    Raises:
        Refused: `provider_call_id_conflict`, one call id for two calls.
        BoundExceeded: `tool_call_limit_reached`, past the hard stop.
    """
    stored = model._default_manager.filter(**of)
    known = {old.call_id: old for old in stored}
    fresh: list[StepT] = []
    for call in calls:
        wanted = _step_of(model, call, {**of, **born})
        existing = known.setdefault(wanted.call_id, wanted)
        if existing is not wanted:
            if _identity(existing) != _identity(wanted):
                raise Refused(ErrorCode.PROVIDER_CALL_ID_CONFLICT)
            continue
        wanted.sequence = len(known)
        if wanted.sequence > limits.tool_calls_hard_stop:
            raise BoundExceeded(ErrorCode.TOOL_CALL_LIMIT_REACHED)
        if wanted.sequence > limits.tool_calls:
            code = ErrorCode.TOOL_CALL_LIMIT_REACHED
            for name, value in _ended(ToolStep.State.FAILED, code).items():
                setattr(wanted, name, value)
            wanted.finished_at = Now()
        fresh.append(wanted)
    if fresh:
        model._default_manager.bulk_create(fresh)
    return steps_called(model, calls, of=of)


def repeated(steps: Iterable[ToolStepFields], provider_step_id: int) -> list[int]:
    """Return the numbers of those of its calls that a response did not ask for first."""
    return [step.sequence for step in steps if _response_of(step) != provider_step_id]


def called_by(response: ProviderStepFields, steps: Iterable[StepT]) -> Iterator[StepT]:
    """Yield those of the `steps` of one work that a response asked for, first or again."""
    for step in steps:
        if _response_of(step) == response.pk or step.sequence in response.repeats:
            yield step


def _response_of(step: ToolStepFields) -> int:
    return int(step.serializable_value("provider_step"))


def require_within_bounds(refused: DatabaseError) -> None:
    """Return where the database refused a response for something else than its bounds.

    The adapters let nothing past them. Call ids are indexed: one far past its bound is refused
    by the index, before a trigger is asked.

    Raises:
        BoundExceeded: `provider_protocol`, an id or the usage is larger than allowed.
    """
    if isinstance(refused, IntegrityError):
        is_too_large = violated_constraint(refused).endswith(_PROVIDER_BOUNDS)
    else:
        is_too_large = isinstance(refused.__cause__, ProgramLimitExceeded)
    if is_too_large:
        raise BoundExceeded(ErrorCode.PROVIDER_PROTOCOL) from None


def steps_called(
    model: type[StepT], calls: Sequence[RequestedCall], *, of: Mapping[str, int]
) -> list[StepT]:
    """Return the stored step of each call, once each, in the order the calls were made."""
    asked = dict.fromkeys(storable(call.call_id) for call in calls)
    if not asked:
        return []
    stored = {step.call_id: step for step in model._default_manager.filter(**of)}
    return [stored[call_id] for call_id in asked if call_id in stored]


def _step_of(model: type[StepT], call: RequestedCall, born: Mapping[str, Any]) -> StepT:
    """Return the step of a call as it is to be stored, without its sequence."""
    made = model(**columns_of(call), **born)
    if made.state != ToolStep.State.REQUESTED:
        made.finished_at = Now()
    return made


def columns_of(call: RequestedCall) -> dict[str, Any]:
    """Return what a step has of its call, by column. One past its bounds is stored failed."""
    arguments = storable(call.arguments)
    columns = {
        "call_id": storable(call.call_id),
        "item_id": storable(call.item_id),
        "name": cut_utf8(storable(call.name), bounds.TOOL_NAME_MAX_BYTES),
        "effect": call.effect,
        "arguments": arguments,
        "arguments_digest": arguments_digest(arguments),
        "invocation_key": uuid4(),
        **_WAITING,
    }
    if call.state != ToolStep.State.REQUESTED:
        columns |= _ended(call.state, call.error_code, call.result)
    if len(arguments.encode()) > bounds.TOOL_ARGUMENTS_MAX_BYTES:
        code = ErrorCode.INVALID_TOOL_ARGUMENTS
        columns |= {"arguments": "", **_ended(ToolStep.State.FAILED, code)}
    return columns


def _ended(
    state: ToolStep.State, error_code: ErrorCode | None, result: str = ""
) -> dict[str, Any]:
    """Return the columns of a step that was never started and never will be."""
    ToolStep.LIFECYCLE.require(ToolStep.State.REQUESTED, state)
    kept = bounded_result(result)
    return {
        "state": state,
        "error_code": (error_code or ErrorCode.TOOL_FAILED).value,
        "result": kept.text,
        "result_digest": kept.digest,
        "result_bytes": kept.bytes,
    }


def _identity(step: ToolStepFields) -> tuple[str, str, str]:
    return step.item_id, step.name, step.arguments_digest
