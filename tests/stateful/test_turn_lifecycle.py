"""One conversation, any order of events: the contract's sentences hold after each of them.

The machine keeps its own small idea of the turn and of what the committed text must be. What it
expects to be refused must be refused and leave every row as it was; all else must succeed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from django.db import IntegrityError
from django.db.models.functions import Now
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from recovery.errors import ErrorCode, IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from recovery.models import Runtime
from tests import factories as make
from tests.support.settled import every_row
from turns import history, transitions
from turns.models import (
    Conversation,
    Message,
    ProviderStep,
    Receipt,
    TextChunk,
    ToolStep,
    Turn,
)
from turns.providers.types import AssistantText, FunctionCall, FunctionResult, UserText
from turns.recovery import TurnRecovery

REFUSALS = (StaleFence, IllegalTransition, Refused)
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)


@dataclass
class Asked:
    """What the machine believes of a turn."""

    pk: int
    state: str = "queued"
    cancel: bool = False
    fence: Fence | None = None
    step: int | None = None  # the provider step under way
    steps: int = 0
    text: str = ""
    last_seq: int = 0
    calls: dict[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state in {"queued", "running"}

    @property
    def may_start(self) -> bool:
        return self.state == "running" and not self.cancel

    def open_calls(self) -> list[str]:
        return [call for call, state in self.calls.items() if state in {"requested", "running"}]


class TurnLifecycle(RuleBasedStateMachine):
    """Person, worker, provider, tools, death and recovery, in any order."""

    turn: Asked
    runtime: Runtime
    conversation: Conversation

    @initialize(steps=st.integers(0, 14))
    def begin(self, steps: int) -> None:
        """Begin anywhere: shallow orders are many, the interesting ones lie deep."""
        self.conversation = make.ConversationFactory.create()
        self.runtime = make.RuntimeFactory.create()
        self.past: list[Asked] = []
        self.started: list[tuple[int, str]] = []
        self.results: dict[int, str] = {}
        self.revision = 0
        self.turn = self.admitted()
        self.get_on(steps)

    def admitted(self) -> Asked:
        admission = transitions.admit_turn(
            self.conversation.owner_id, self.conversation.pk, "Why?"
        )
        assert admission.created
        return Asked(admission.turn.pk)

    def refused(self, act: Callable[[], object], *kinds: type[Exception]) -> None:
        before = every_row()
        with pytest.raises(kinds or REFUSALS):
            act()
        assert every_row() == before

    @property
    def fence(self) -> Fence:
        assert self.turn.fence is not None
        return self.turn.fence

    # --- the person ---

    @rule()
    def ask(self) -> None:
        if self.turn.is_open:
            self.refused(self.admitted, Refused)
        else:
            self.past.append(self.turn)
            self.turn = self.admitted()

    @rule()
    def cancel(self) -> None:
        nobody_works = self.turn.state == "queued" or self.is_orphan()
        _, accepted = transitions.request_cancel(self.conversation.owner_id, self.turn.pk)
        assert accepted == self.turn.is_open
        if self.turn.is_open:
            self.turn.cancel = True
            if nobody_works:
                self.end("cancelled")

    # --- the worker ---

    @rule()
    def claim(self) -> None:
        fence = transitions.claim_turn(self.turn.pk, owner=self.runtime.pk)
        assert (fence is not None) == (self.turn.state == "queued" and self.is_alive())
        if fence is not None:
            self.turn.fence, self.turn.state = fence, "running"

    @precondition(lambda self: self.turn.fence is not None)
    @rule()
    def request(self) -> None:
        turn, facts = self.turn, make.request_facts()
        act = transitions.start_provider_step if turn.steps else transitions.capture_receipt
        if turn.may_start and turn.step is None and not turn.open_calls():
            turn.step = act(self.fence, facts).pk
            turn.steps += 1
        else:
            self.refused(lambda: act(self.fence, facts))

    @precondition(lambda self: self.turn.fence is not None)
    @rule(text=words)
    def hear(self, text: str) -> None:
        turn = self.turn

        def write() -> None:
            make.TextChunkFactory.create(
                turn_id=turn.pk, turn=None, generation=1, seq=turn.last_seq + 1, text=text
            )

        if turn.state == "running":
            write()
            turn.text, turn.last_seq = turn.text + text, turn.last_seq + 1
        else:
            self.refused(write, IntegrityError)

    @precondition(lambda self: self.turn.step is not None)
    @rule(count=st.integers(0, 3), unknown=st.booleans())
    def respond(self, count: int, *, unknown: bool) -> None:
        turn, step = self.turn, self.turn.step
        assert step is not None
        state = ToolStep.State.UNAVAILABLE if unknown else ToolStep.State.REQUESTED
        calls = [
            transitions.RequestedCall(
                f"{turn.steps}:{n}", "", "webhook_post", '{"n": 1}',
                effect=ToolStep.Effect.EXTERNAL, state=state,
                error_code=ErrorCode.UNKNOWN_TOOL if unknown else None,
            )
            for n in range(count)
        ]  # fmt: skip

        def complete() -> list[ToolStep]:
            return transitions.complete_provider_step(
                self.fence, step, response_id="r", usage={"output_tokens": 1},
                last_seq=turn.last_seq, calls=calls,
            )  # fmt: skip

        if turn.state == "running":
            assert [tool.call_id for tool in complete()] == [call.call_id for call in calls]
            assert len(complete()) == len(calls)  # delivered twice
            turn.calls.update({call.call_id: state.value for call in calls})
            turn.step = None
        else:
            self.refused(complete, StaleFence)

    @precondition(lambda self: self.turn.calls)
    @rule(data=st.data())
    def start_tool(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted(self.turn.calls)))
        self.start(ToolStep.objects.get(turn_id=self.turn.pk, call_id=call))

    def start(self, tool: ToolStep) -> None:
        call = tool.call_id
        if self.turn.may_start and self.turn.calls[call] == "requested":
            transitions.start_tool_step(self.fence, tool.pk)
            self.turn.calls[call] = "running"
            self.started.append((self.turn.pk, call))
        else:
            self.refused(lambda: transitions.start_tool_step(self.fence, tool.pk))

    @precondition(lambda self: self.turn.calls)
    @rule(data=st.data(), result=words)
    def finish_tool(self, data: st.DataObject, result: str) -> None:
        call = data.draw(st.sampled_from(sorted(self.turn.calls)))
        self.end_tool(ToolStep.objects.get(turn_id=self.turn.pk, call_id=call), result)

    def end_tool(self, tool: ToolStep, result: str) -> None:
        call = tool.call_id

        def finish() -> ToolStep:
            return transitions.finish_tool_step(
                self.fence, tool.pk, ToolStep.State.SUCCEEDED, result=result
            )

        known = self.results.get(tool.pk)
        if self.turn.state == "running" and self.turn.calls[call] == "running":
            finish()
            self.turn.calls[call] = "succeeded"
            self.results[tool.pk] = result
        elif self.turn.state == "running" and known == result:
            assert finish().result == result
        else:
            self.refused(finish)

    @precondition(lambda self: self.turn.fence is not None)
    @rule(state=st.sampled_from([Turn.State.COMPLETED, Turn.State.FAILED]))
    def finish(self, state: Turn.State) -> None:
        turn = self.turn

        def act() -> Turn:
            return transitions.finish_turn(self.fence, state, last_seq=turn.last_seq)

        completes = state == Turn.State.COMPLETED and not turn.cancel
        if turn.state != "running" or (completes and (turn.open_calls() or not turn.steps)):
            self.refused(act)
        else:
            act()
            self.end("cancelled" if turn.cancel else state.value)

    @precondition(lambda self: self.turn.fence is not None)
    @rule()
    def drain(self) -> None:
        ended = transitions.interrupt_own_turns([self.fence], ErrorCode.RUNTIME_STOPPED)
        assert bool(ended) == (self.turn.state == "running")
        if ended:
            self.end("cancelled" if self.turn.cancel else "interrupted")

    @rule(steps=st.integers(1, 8))
    def get_on(self, steps: int) -> None:
        """Let a living worker take the next steps of the protocol, up to its end."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        turn = self.turn
        if not turn.is_open:
            self.ask()
        elif turn.state == "queued":
            if not self.is_alive():
                self.restart()
            self.claim()
        elif turn.cancel or self.is_orphan():
            self.recover() if self.is_orphan() else self.finish(Turn.State.COMPLETED)
        elif waiting := turn.open_calls():
            self.call(waiting[0])
        elif turn.step is None and turn.steps < 3:
            self.request()
        elif turn.step is not None and turn.last_seq < 2 * turn.steps:
            self.hear("text ")
        elif turn.step is not None and turn.steps < 3:
            self.respond(2, unknown=False)
        else:
            self.finish(Turn.State.COMPLETED)

    def call(self, call: str) -> None:
        """Start the tool or let it end."""
        tool = ToolStep.objects.get(turn_id=self.turn.pk, call_id=call)
        if self.turn.calls[call] == "requested":
            self.start(tool)
        else:
            self.end_tool(tool, "found")

    # --- death and recovery ---

    @rule()
    def die(self) -> None:
        Runtime.objects.filter(pk=self.runtime.pk, stopped_at=None).update(
            stopped_at=Now(), stop_reason="runtime_lost"
        )

    @precondition(lambda self: not self.is_alive())
    @rule()
    def restart(self) -> None:
        self.runtime = make.RuntimeFactory.create()

    @rule()
    def recover(self) -> None:
        orphan = self.is_orphan()
        report = TurnRecovery().settle_orphans()
        assert (str(self.turn.pk) in [row["id"] for row in report.rows]) == orphan
        if orphan:
            self.end("interrupted")
        before = every_row()
        assert TurnRecovery().settle_orphans().examined == 0
        assert every_row() == before

    @precondition(lambda self: any(turn.fence for turn in self.past))
    @rule(data=st.data())
    def wake_a_stale_owner(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from([turn for turn in self.past if turn.fence]))
        fence = old.fence
        assert fence is not None
        for act in (
            lambda: transitions.finish_turn(fence, Turn.State.COMPLETED, text="late"),
            lambda: transitions.start_provider_step(fence, make.request_facts()),
            lambda: transitions.capture_receipt(fence, make.request_facts()),
        ):
            self.refused(act, StaleFence)

    # --- what always holds ---

    @invariant()
    def rows_say_what_happened(self) -> None:
        if not hasattr(self, "turn"):
            return
        for believed in (*self.past, self.turn):
            turn = Turn.objects.get(pk=believed.pk)
            assert turn.state == believed.state
            answer = Message.objects.get(pk=turn.assistant_message_id)
            chunks = TextChunk.objects.filter(turn_id=turn.pk).order_by("seq")
            text = answer.text + "".join(chunks.values_list("text", flat=True))
            assert text == believed.text
            if not believed.is_open:
                assert not chunks.exists()
                assert answer.state in Message.LIFECYCLE.terminal
                for model in (Receipt, ProviderStep, ToolStep):
                    for row in model._default_manager.filter(turn_id=turn.pk):
                        assert row.state in model.LIFECYCLE.terminal
        assert Turn.objects.filter(conversation=self.conversation).open().count() <= 1

    @invariant()
    def revisions_never_fall_and_tools_start_once(self) -> None:
        if not hasattr(self, "turn"):
            return
        revision = Conversation.objects.get(pk=self.conversation.pk).revision
        assert revision >= self.revision
        self.revision = revision
        assert len(set(self.started)) == len(self.started)
        for pk, result in self.results.items():
            assert ToolStep.objects.get(pk=pk).result == result

    @invariant()
    def the_next_request_would_be_accepted(self) -> None:
        """failure H23"""
        if not hasattr(self, "turn"):
            return
        items = history.read(Turn.objects.get(pk=self.turn.pk)).items
        waiting: set[str] = set()
        seen: set[str] = set()
        for item in items:
            match item:
                case FunctionCall():
                    assert item.call_id not in seen
                    assert isinstance(json.loads(item.arguments), dict)
                    waiting.add(item.call_id)
                    seen.add(item.call_id)
                case FunctionResult():
                    waiting.remove(item.call_id)
                case UserText() | AssistantText():
                    assert not waiting
        assert not waiting

    def end(self, state: str) -> None:
        """Note that the turn has ended like this."""
        self.turn.state, self.turn.step = state, None

    def is_alive(self) -> bool:
        return Runtime.objects.living().filter(pk=self.runtime.pk).exists()

    def is_orphan(self) -> bool:
        return Turn.objects.orphaned().filter(pk=self.turn.pk).exists()

    def teardown(self) -> None:
        """Remove what this run made, so that the next one looks at its own rows."""
        with suppress(AttributeError):
            TextChunk.objects.filter(turn__conversation=self.conversation).delete()
            self.conversation.delete()


@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
def test_the_promises_hold_in_every_order_of_events() -> None:
    run_state_machine_as_test(
        TurnLifecycle,
        settings=settings(
            max_examples=12,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
