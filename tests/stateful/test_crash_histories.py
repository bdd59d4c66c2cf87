"""Whatever a crash leaves of a conversation, the next request is one a strict provider accepts.

Conversations are made of real transitions, each turn broken off behind any of its writes and
ended in any of the ways there are. Then the next request is built as a worker builds it and
judged as it leaves: the bodies of both adapters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest
from django.db import connection
from django.db.models.functions import Now
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.errors import ErrorCode
from recovery.fences import Fence
from recovery.models import Runtime
from tests import factories as make
from turns import transitions
from turns.models import Conversation, Turn
from turns.models import ToolStep as Step
from turns.providers.chat import ChatProvider
from turns.providers.responses import ResponsesProvider
from turns.providers.types import TextRequest
from turns.recovery import TurnRecovery
from turns.requests import Requests
from turns.tools import registry
from turns.transitions import RequestedCall

pytestmark = pytest.mark.django_db(transaction=True)

# stands for more than a step keeps
LONG: Final = "long"
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


# --- What a model may do, and where it ends ---


@dataclass(frozen=True)
class Call:
    """A call and what comes of it."""

    call_id: str
    name: str
    arguments: str
    state: Step.State
    result: str


@dataclass(frozen=True)
class Response:
    """What a model answers once."""

    text: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Story:
    """A turn, the number of writes after which its process stops, and how it then ends."""

    responses: tuple[Response, ...]
    writes: int
    end: str


words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20
) | st.sampled_from([" ", "\n\n", "Hello. ", "🛶"])
calls = st.builds(
    Call,
    # servers count from the start in each response, or in each turn, or make ids up
    call_id=st.sampled_from(["call_0", "call_1", "1:0"]) | st.uuids().map(str),
    name=st.sampled_from(["search_history", "note_save", "do it!", "", "x" * 128, "näh"]),
    arguments=st.sampled_from(
        ["{}", '{"query": "boat"}', "", "{", "[]", "null", '{"a": NaN}', '{"a": "\\ud800"}']
    ),
    state=st.sampled_from(
        [Step.State.SUCCEEDED, Step.State.FAILED, Step.State.REFUSED, Step.State.INTERRUPTED]
    ),
    result=st.sampled_from(["", "found", '{"hits": []}', "\x00", LONG]),
)
responses = st.builds(Response, words, st.lists(calls, max_size=3).map(tuple))
stories = st.builds(
    Story,
    st.lists(responses, min_size=1, max_size=3).map(tuple),
    st.integers(0, 20),
    st.sampled_from(["killed", "stopped", "cancelled", "failed", "completed"]),
)


# --- A process that stops behind a write ---


class Stopped(Exception):
    """The process has done as many writes as it was given."""


class Process:
    """Serves one turn by its transitions, until it is stopped."""

    def __init__(self, turn: Turn, story: Story, runtime: Runtime) -> None:
        self.turn = turn
        self.story = story
        self.runtime = runtime
        self.fence: Fence | None = None
        self.left = story.writes
        self.seq = 0

    def wrote(self) -> None:
        """One more write is committed."""
        if self.left == 0:
            raise Stopped
        self.left -= 1

    def run(self) -> None:
        """Do everything the story tells, a write at a time."""
        self.wrote()
        fence = transitions.claim_turn(self.turn.pk, owner=self.runtime.pk)
        assert fence is not None
        self.fence = fence
        self.wrote()
        step = transitions.capture_receipt(fence, make.request_facts())
        for number, response in enumerate(self.story.responses):
            if number:
                self.wrote()
                step = transitions.start_provider_step(fence, make.request_facts())
            if response.text:
                self.wrote()
                self.seq += 1
                make.TextChunkFactory.create(
                    turn=self.turn,
                    generation=fence.generation,
                    seq=self.seq,
                    text=response.text,
                )
            self.wrote()
            stored = transitions.complete_provider_step(
                fence,
                step.pk,
                response_id=f"resp_{number}",
                usage=None,
                last_seq=self.seq or None,
                calls=distinct(response.calls, self.turn),
            )
            for tool in stored:
                if tool.state != Step.State.REQUESTED:
                    continue
                self.wrote()
                transitions.start_tool_step(fence, tool.pk)
                told = next(c for c in response.calls if c.call_id == tool.call_id)
                self.wrote()
                code = ErrorCode.OUTCOME_UNKNOWN
                transitions.finish_tool_step(
                    fence,
                    tool.pk,
                    told.state,
                    result=told.result.replace(LONG, "x" * 70_000),
                    error_code=code,
                )

    def end(self) -> None:
        """End the turn as the story tells."""
        owner = self.turn.conversation.owner_id
        match self.story.end:
            case "killed":
                Runtime.objects.filter(pk=self.runtime.pk).update(
                    stopped_at=Now(), stop_reason="runtime_lost"
                )
                TurnRecovery().settle_orphans()
            case "stopped" if self.fence is not None:
                transitions.interrupt_own_turns([self.fence], ErrorCode.RUNTIME_STOPPED)
            case "failed" | "completed" if self.fence is not None:
                transitions.finish_turn(
                    self.fence,
                    Turn.State.FAILED,
                    error_code=ErrorCode.PROVIDER_FAILED,
                    last_seq=self.seq or None,
                )
            case "cancelled" if self.fence is not None:
                transitions.request_cancel(owner, self.turn.pk)
                transitions.finish_turn(
                    self.fence, Turn.State.CANCELLED, last_seq=self.seq or None
                )
        transitions.request_cancel(owner, self.turn.pk)  # one that nobody claimed


def distinct(calls: Sequence[Call], turn: Turn) -> list[RequestedCall]:
    """Return the calls whose ids are new in this turn: a repeated one is another test's."""
    known = set(Step.objects.filter(turn_id=turn.pk).values_list("call_id", flat=True))
    fresh: list[RequestedCall] = []
    for call in calls:
        if call.call_id not in known:
            known.add(call.call_id)
            fresh.append(RequestedCall(call.call_id, "item", call.name, call.arguments))
    return fresh


# --- A strict provider ---


def distinct_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def require_object(text: str) -> None:
    """Fail unless `text` is one JSON object of plain JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    value = json.loads(text, parse_constant=refuse, object_pairs_hook=distinct_members)
    assert isinstance(value, dict)


def require_text(text: object) -> None:
    assert isinstance(text, str)
    assert text.strip()
    assert "\x00" not in text


def judge_responses(body: dict[str, Any]) -> None:
    """Fail as the Responses API would: pairs, names, ids, and no empty words."""
    waiting: set[str] = set()
    used: set[str] = set()
    items = body["input"]
    assert items[0]["role"] == "user"
    for item in items:
        match item["type"]:
            case "message":
                assert not waiting, "no tool output found for function call"
                (part,) = item["content"]
                kind = {"user": "input_text", "assistant": "output_text"}[item["role"]]
                assert part["type"] == kind
                require_text(part["text"])
            case "function_call":
                assert item["call_id"]
                assert item["call_id"] not in used
                used.add(item["call_id"])
                waiting.add(item["call_id"])
                assert NAME.fullmatch(item["name"])
                require_object(item["arguments"])
            case "function_call_output":
                waiting.remove(item["call_id"])
                assert isinstance(item["output"], str)
                assert "\x00" not in item["output"]
            case other:
                raise AssertionError(other)
    assert not waiting


def judge_chat(body: dict[str, Any]) -> None:
    """Fail as chat templates do: roles take turns, results follow the message that called."""
    messages = body["messages"]
    assert [m["role"] for m in messages[:2]] == ["system", "user"]
    waiting: set[str] = set()
    before = "system"
    for message in messages[1:]:
        role = message["role"]
        if role == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, "an assistant message with tool calls must be followed by them"
            if role == "user":
                assert before in {"system", "assistant", "tool"}
                require_text(message["content"])
            else:
                assert role == "assistant"
                assert before in {"user", "tool"}
                if message["content"] is not None:
                    require_text(message["content"])
                assert message["content"] is not None or message["tool_calls"]
                for call in message.get("tool_calls", []):
                    assert NAME.fullmatch(call["function"]["name"])
                    require_object(call["function"]["arguments"])
                    assert call["id"] not in waiting
                    waiting.add(call["id"])
        before = role
    assert not waiting


JUDGES: Final[tuple[tuple[Any, Callable[[dict[str, Any]], None]], ...]] = (
    (ResponsesProvider(base_url="http://127.0.0.1:1/v1"), judge_responses),
    (ChatProvider(base_url="http://127.0.0.1:1/v1"), judge_chat),
)


def require_accepted(request: TextRequest) -> None:
    for adapter, judge in JUDGES:
        judge(json.loads(adapter.encode(request).decode()))


def outputs(request: TextRequest) -> Iterator[str]:
    body = json.loads(JUDGES[0][0].encode(request))
    yield from (i["output"] for i in body["input"] if i["type"] == "function_call_output")


def next_request(conversation: Conversation) -> TextRequest:
    """Return what is asked for a next question, built as a worker builds it."""
    turn = transitions.admit_turn(conversation.owner_id, conversation.pk, "And now?").turn
    fence = transitions.claim_turn(turn.pk, owner=make.RuntimeFactory.create().pk)
    assert fence is not None
    building = Requests("Be brief.", 96 * 1024, None, registry.schemas())
    request, _ = building.build(turn.pk, step=1, provider_api="responses", offer_tools=True)
    return request


@given(told=st.lists(stories, min_size=1, max_size=3))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_history_a_crash_can_leave_makes_a_request_a_strict_provider_accepts(
    told: list[Story],
) -> None:
    """failures H22, H23"""
    conversation = make.ConversationFactory.create()
    for story in told:
        turn = transitions.admit_turn(conversation.owner_id, conversation.pk, "Well?").turn
        process = Process(turn, story, make.RuntimeFactory.create())
        with suppress(Stopped):
            process.run()
        process.end()
        turn.refresh_from_db()
        assert turn.state in Turn.LIFECYCLE.terminal

    request = next_request(conversation)

    require_accepted(request)
    # a stored result is told as it was stored (or cut, or left out), never replaced by ours
    kept = list(outputs(request))
    for step in Step.objects.filter(turn__conversation=conversation).exclude(result=""):
        synthetic = [o for o in kept if '"error"' in o and step.result in o]
        assert not synthetic
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM turns_textchunk")
        assert cursor.fetchone() == (0,)
