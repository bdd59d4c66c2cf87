"""All writers at once over a few conversations: no deadlock, no lost text, no open child."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from recovery.errors import ErrorCode, IllegalTransition, Refused, StaleFence
from recovery.models import Runtime
from tests import factories as make
from tests.support.rivals import Rival
from turns import transitions
from turns.models import Conversation, Message, ProviderStep, Receipt, TextChunk, ToolStep, Turn
from turns.recovery import TurnRecovery
from turns.textlog import FLUSH

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 100
EXPECTED = (StaleFence, IllegalTransition, Refused)


class Writer:
    """One process: claims, writes, ends; whatever is refused, it goes on."""

    def __init__(self, seed: int, conversations: list[Conversation], database_url: str) -> None:
        self.random = random.Random(seed)
        self.conversations = conversations
        self.database_url = database_url
        self.written: dict[int, list[str]] = {}
        self.did: Counter[str] = Counter()

    def run(self) -> None:
        self.runtime = make.RuntimeFactory.create()
        acts: list[Callable[[Conversation], None]] = [
            *[self.ask] * 3, *[self.work] * 4, self.cancel, self.die, self.recover, self.remove
        ]  # fmt: skip
        with psycopg.connect(self.database_url, autocommit=True) as self.log:
            for _ in range(ROUNDS):
                try:
                    self.random.choice(acts)(self.random.choice(self.conversations))
                except EXPECTED as refused:
                    self.did[type(refused).__name__] += 1

    def ask(self, conversation: Conversation) -> None:
        transitions.admit_turn(conversation.owner_id, conversation.pk, "Why?")

    def recover(self, _conversation: Conversation) -> None:
        TurnRecovery().settle_orphans()

    def cancel(self, conversation: Conversation) -> None:
        turn = Turn.objects.filter(conversation=conversation).open().first()
        if turn is not None:
            transitions.request_cancel(conversation.owner_id, turn.pk)

    def remove(self, conversation: Conversation) -> None:
        transitions.delete_conversation(conversation.owner_id, conversation.pk)
        self.did["removed"] += 1
        # the list is one for all writers, and never empty
        self.conversations[self.conversations.index(conversation)] = (
            make.ConversationFactory.create()
        )

    def die(self, _conversation: Conversation) -> None:
        Runtime.objects.filter(pk=self.runtime.pk).update(
            stopped_at=Now(), stop_reason="runtime_lost"
        )
        self.runtime = make.RuntimeFactory.create()

    def work(self, conversation: Conversation) -> None:
        turn = Turn.objects.filter(conversation=conversation).open().first()
        if turn is None:
            return
        fence = transitions.claim_turn(turn.pk, owner=self.runtime.pk)
        if fence is None:
            return
        self.did["claimed"] += 1
        step = transitions.capture_receipt(fence, make.request_facts())
        seq = 0
        for text in ("one ", "two ", "three "):
            seq += 1
            flushed = self.log.execute(
                FLUSH,
                {
                    "ids": [fence.pk],
                    "generations": [fence.generation],
                    "tokens": [fence.token],
                    "seqs": [seq],
                    "texts": [text],
                },
                prepare=False,
            )
            if flushed.rowcount == 0:
                break  # busy or lost: the text log would try again, this writer stops
            self.written.setdefault(turn.pk, []).append(text)
        call = transitions.RequestedCall("c", "i", "search_history", "{}")
        tools = transitions.complete_provider_step(
            fence, step.pk, response_id="r", usage=None, last_seq=seq, calls=[call]
        )
        transitions.start_tool_step(fence, tools[0].pk)
        transitions.finish_tool_step(fence, tools[0].pk, ToolStep.State.SUCCEEDED, result="x")
        end = self.random.choice(["finish", "finish", "finish", "drain", "leave"])
        if end == "finish":
            transitions.finish_turn(fence, Turn.State.FAILED)
        elif end == "drain":
            transitions.interrupt_own_turns([fence], ErrorCode.RUNTIME_STOPPED)
        self.did[end] += 1


def test_all_writers_at_once_neither_deadlock_nor_lose_text(database_url: str) -> None:
    """failures H77, H78"""
    conversations = make.ConversationFactory.create_batch(3)
    writers = [Writer(seed, conversations, database_url) for seed in range(6)]
    for rival in [Rival(writer.run) for writer in writers]:
        error = rival.error(seconds=90)
        assert not isinstance(error, OperationalError), f"a deadlock or a lock timeout: {error}"
        assert error is None

    # what is still open belongs to runtimes that live: let them die
    Runtime.objects.filter(stopped_at=None).update(stopped_at=Now(), stop_reason="runtime_lost")
    TurnRecovery().settle_orphans()
    written: dict[int, str] = {}
    did: Counter[str] = Counter()
    for writer in writers:
        written.update({pk: "".join(texts) for pk, texts in writer.written.items()})
        did.update(writer.did)
    assert did["claimed"] > 5
    assert did["removed"] > 0
    for turn in Turn.objects.exclude(state="queued"):
        assert turn.state in Turn.LIFECYCLE.terminal
        assert Message.objects.get(pk=turn.assistant_message_id).text == written.get(
            turn.pk, ""
        )
    assert not TextChunk.objects.exists()
    for model in (Receipt, ProviderStep, ToolStep):
        open_states = sorted(model.LIFECYCLE.open)
        assert not model._default_manager.filter(state__in=open_states).exists()
