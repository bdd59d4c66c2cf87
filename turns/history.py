"""What a provider is told of a conversation: always valid, always within bounds.

Everything is read from committed rows. Every call is followed by exactly one result, whatever
crashed in between; a call without an outcome gets one that says so. The calls of one response
are told together, then their results: told one by one they would be so many responses. The
newest messages that fit are sent, at most 32 and 96 KiB; a call and its result are kept or left
out together.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Final

from recovery.blanks import shows_something
from recovery.bounds import cut_utf8
from recovery.errors import ErrorCode
from turns import bounds
from turns.digests import digest, digest_json
from turns.models import Message, ProviderStep, TextChunk, ToolStep, Turn
from turns.models.steps import ProviderStepFields, ToolStepFields
from turns.providers.types import (
    AssistantText,
    FunctionCall,
    FunctionResult,
    Item,
    TextRequest,
    UserText,
)
from turns.transitions import RequestFacts
from turns.transitions.calls import called_by

# A result of the turn at work is cut to no less than this before anything is left out.
RESULT_MIN_BYTES: Final = 512
CUT_MARK: Final = "\n[cut: {bytes} bytes in all]"
REPORTED: Final = "(A job that was done in the background reported:)"
# what OpenAI documents for the name of a function, and others copy
NAME_MAX_CHARS: Final = 64
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class History:
    """The items of a request, the number of messages they tell, and their size."""

    items: tuple[Item, ...]
    message_count: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A call and its one result; `response` is the provider step that asked for it."""

    call: FunctionCall
    result: FunctionResult
    response: int

    @property
    def bytes(self) -> int:
        """How much both add to a request."""
        return _bytes_of(self.call) + _bytes_of(self.result)

    def named(self, call_id: str) -> Pair:
        """Return it under another id."""
        call = replace(self.call, call_id=call_id)
        return replace(self, call=call, result=replace(self.result, call_id=call_id))


Part = UserText | AssistantText | Pair


@dataclass(frozen=True, slots=True)
class Said:
    """One message: a person's words, an answer with the calls made on the way to it, or what
    came without a question: the report of a job.
    """

    parts: tuple[Part, ...]
    is_unasked: bool = False

    @property
    def bytes(self) -> int:
        """How much it adds to a request."""
        return sum(_part_bytes(part) for part in self.parts)

    @property
    def may_come_first(self) -> bool:
        """True when nothing is missed before it."""
        return self.is_unasked or any(isinstance(part, UserText) for part in self.parts)

    def introduced(self) -> Said:
        """Return it with a word before it: some services refuse an answer that comes first."""
        return replace(self, parts=(UserText(REPORTED), *self.parts))

    def without_calls(self) -> Said:
        """Return the words alone."""
        return replace(self, parts=tuple(p for p in self.parts if not isinstance(p, Pair)))


def read(turn: Turn, max_bytes: int = bounds.HISTORY_MAX_BYTES) -> History:
    """Return what the provider is told of the conversation for the turn's next request.

    `max_bytes` is what the model has room for; the question itself is never cut.
    """
    newest = (
        Message.objects.filter(
            conversation_id=turn.conversation_id, pk__lte=turn.user_message_id
        )
        .order_by("-pk")
        .only("pk", "role", "text")[: bounds.HISTORY_MAX_MESSAGES]
    )
    messages = list(newest)[::-1]
    calls = _Calls(turn, messages)
    earlier = [calls.said(message) for message in messages[:-1]]
    return compose(
        earlier, question=messages[-1].text, answer=calls.so_far(), max_bytes=max_bytes
    )


def compose(
    earlier: Sequence[Said],
    *,
    question: str,
    answer: Said,
    max_bytes: int = bounds.HISTORY_MAX_BYTES,
) -> History:
    """Return the newest of `earlier` that fit, the question, and the answer so far.

    Of the answer so far the results are cut first, the longest most, and only then its oldest
    parts left out: the model must see what it has done, or it does it again.
    """
    *earlier, answer = _unambiguous([*earlier[-(bounds.HISTORY_MAX_MESSAGES - 1) :], answer])
    room = min(max_bytes, bounds.HISTORY_MAX_BYTES) - _bytes_of(UserText(question))
    room -= len(REPORTED) if any(said.is_unasked for said in earlier) else 0
    answer = _fitting(answer, room)
    room -= answer.bytes
    kept: list[Said] = []
    for said in reversed(earlier):
        whole = said if said.bytes <= room else said.without_calls()
        if whole.bytes > room:
            break
        room -= whole.bytes
        kept.append(whole)
    kept.reverse()
    # an answer whose question is left out would be somebody speaking first
    while kept and not kept[0].may_come_first:
        kept.pop(0)
    if kept and kept[0].is_unasked:
        kept[0] = kept[0].introduced()
    told = [*kept, Said((UserText(question),)), answer]
    items = tuple(_in_order(told))
    return History(
        items,
        message_count=sum(1 for said in told if said.parts),
        byte_count=sum(_bytes_of(item) for item in items),
    )


def facts(request: TextRequest, *, provider_api: str, message_count: int) -> RequestFacts:
    """Return what a receipt records of `request`: names, digests and counts, no words."""
    tools = [asdict(tool) for tool in request.tools]
    items = [{"kind": type(item).__name__, **asdict(item)} for item in request.items]
    sent = {
        "model": request.model,
        "instructions": request.instructions,
        "items": items,
        "tools": tools,
        "tool_choice": request.tool_choice,
        "max_output_tokens": request.max_output_tokens,
    }
    return RequestFacts(
        provider_api=provider_api,
        model=request.model,
        instructions_digest=digest(request.instructions),
        input_digest=digest_json(items),
        tools_digest=digest_json(tools),
        request_digest=digest_json(sent),
        message_count=message_count,
        byte_count=len(request.instructions.encode())
        + sum(_bytes_of(item) for item in request.items),
        offers_tools=bool(request.tools),
    )


def pairs(response: ProviderStepFields, steps: Iterable[ToolStepFields]) -> Iterator[Pair]:
    """Yield those of the `steps` of one work that a response asked for, each with what it is
    told came of it. A call that was made before is told again: else it seems to be ignored."""
    for step in called_by(response, steps):
        yield Pair(
            FunctionCall(step.call_id, _function_name(step.name), _json_object(step.arguments)),
            FunctionResult(step.call_id, outcome_told(step)),
            response=response.pk,
        )


def outcome_told(step: ToolStepFields) -> str:
    """Return what the model is told came of a call. A stored result is never replaced."""
    if step.result or step.state == ToolStep.State.SUCCEEDED:
        return step.result
    if step.state not in ToolStep.LIFECYCLE.terminal:
        code = ErrorCode.OUTCOME_UNKNOWN if step.started_at else ErrorCode.NOT_STARTED
        status = ToolStep.State.INTERRUPTED.value
    else:
        code, status = ErrorCode(step.error_code), step.state
    told = {"status": status, "error": code.value}
    if step.started_at is None:
        told["message"] = "This was not started."
    elif step.effect == ToolStep.Effect.READ:
        told["message"] = "This ended without a result."
    elif status in {ToolStep.State.INTERRUPTED, ToolStep.State.CANCELLED}:
        told["message"] = (
            "This was interrupted: it is unknown whether it took effect. Do not repeat it "
            "unless the person asks for it."
        )
    else:
        told["message"] = str(code.label)
    return json.dumps(told)


@dataclass(slots=True)
class _Calls:
    """The turns behind some messages, with their steps."""

    current: Turn
    messages: list[Message]
    turns: dict[int, Turn] = field(default_factory=dict)
    steps: dict[int, list[ProviderStep]] = field(default_factory=lambda: defaultdict(list))
    tools: dict[int, list[ToolStep]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        answers = [m.pk for m in self.messages if m.role == Message.Role.ASSISTANT]
        for turn in Turn.objects.filter(assistant_message_id__in=answers):
            self.turns[turn.assistant_message_id] = turn
        pks = [self.current.pk, *(turn.pk for turn in self.turns.values())]
        for step in ProviderStep.objects.filter(turn_id__in=pks).order_by("sequence"):
            self.steps[step.turn_id].append(step)
        for tool in ToolStep.objects.filter(turn_id__in=pks).order_by("sequence"):
            self.tools[tool.turn_id].append(tool)

    def said(self, message: Message) -> Said:
        """Return an earlier message as it is told."""
        if message.role == Message.Role.USER:
            return Said((UserText(message.text),))
        turn = self.turns.get(message.pk)
        return Said(tuple(self._parts(turn, message.text)), is_unasked=turn is None)

    def so_far(self) -> Said:
        """Return what the turn at work has committed of its answer."""
        chunks = TextChunk.objects.filter(turn_id=self.current.pk).order_by("seq")
        text = "".join(chunks.values_list("text", flat=True))
        return Said(tuple(self._parts(self.current, text)))

    def _parts(self, turn: Turn | None, text: str) -> Iterator[AssistantText | Pair]:
        """Yield the words of each response before the calls it made, then the rest."""
        told = 0
        for step in self.steps[turn.pk] if turn else ():
            if step.text_length is not None and step.text_length > told:
                words = text[told : step.text_length]
                if shows_something(words):  # some services refuse a blank message
                    yield AssistantText(words)
                told = step.text_length
            yield from pairs(step, self.tools[step.turn_id])
        rest = text[told:]
        if shows_something(rest):
            yield AssistantText(rest)


def _function_name(name: str) -> str:
    """Return the name as a service takes it back: a model may call what nobody offered it."""
    return _NOT_IN_A_NAME.sub("_", name)[:NAME_MAX_CHARS] or "_"


def _json_object(arguments: str) -> str:
    """Return the arguments as the model wrote them, or an empty object where they are none.

    A model may write anything; a strict provider takes back only JSON.
    """
    try:
        is_object = isinstance(json.loads(arguments, parse_constant=_refuse_constant), dict)
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else "{}"


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(name)


def _fitting(answer: Said, room: int) -> Said:
    """Return the answer so far within `room`, if cutting results and leaving out can do it."""
    excess = answer.bytes - room
    if excess <= 0:
        return answer
    limit = _result_limit([p.result for p in answer.parts if isinstance(p, Pair)], excess)
    parts = [
        replace(part, result=_cut(part.result, limit)) if isinstance(part, Pair) else part
        for part in answer.parts
    ]
    sizes = [_part_bytes(part) for part in parts]
    size, first = sum(sizes), 0
    while first < len(parts) - 1 and size > room:
        size -= sizes[first]
        first += 1
    return Said(tuple(parts[first:]))


def _result_limit(results: Sequence[FunctionResult], excess: int) -> int:
    """Return the size to which cutting the longest results saves `excess` bytes."""
    sizes = sorted((len(result.output.encode()) for result in results), reverse=True)
    limit = sizes[0] if sizes else 0
    for count, size in enumerate(sizes, start=1):
        following = sizes[count] if count < len(sizes) else 0
        if count * (size - following) >= excess:
            limit = size - -(-excess // count)
            break
        excess -= count * (size - following)
        limit = following
    return max(limit, RESULT_MIN_BYTES)


def _cut(result: FunctionResult, limit: int) -> FunctionResult:
    size = len(result.output.encode())
    if size <= limit:
        return result
    mark = CUT_MARK.format(bytes=size)
    return replace(result, output=cut_utf8(result.output, limit - len(mark)) + mark)


def _unambiguous(told: Iterable[Said]) -> Iterator[Said]:
    """Yield what is told with every call id once.

    Servers that count calls from the start in each response use the same ids in every turn.
    """
    used: set[str] = set()
    for said in told:
        parts: list[Part] = []
        for part in said.parts:
            if isinstance(part, Pair):
                call_id = part.call.call_id
                count = 1
                while call_id in used:
                    count += 1
                    call_id = f"{part.call.call_id}.{count}"
                used.add(call_id)
                parts.append(part.named(call_id))
            else:
                parts.append(part)
        yield replace(said, parts=tuple(parts))


def _in_order(told: Iterable[Said]) -> Iterator[Item]:
    """Yield the items in order: the calls of a response, then their results."""
    for said in told:
        for _, parts in groupby(said.parts, key=_response_of):
            results: list[FunctionResult] = []
            for part in parts:
                if isinstance(part, Pair):
                    yield part.call
                    results.append(part.result)
                else:
                    yield part
            yield from results


def _response_of(part: Part) -> int | None:
    """Return which response asked for the call; None for words."""
    return part.response if isinstance(part, Pair) else None


def _part_bytes(part: Part) -> int:
    return part.bytes if isinstance(part, Pair) else _bytes_of(part)


def _bytes_of(item: Item) -> int:
    """Return the bytes of an item's words, names and ids; the wire's own are not counted."""
    return sum(len(value.encode()) for value in asdict(item).values())
