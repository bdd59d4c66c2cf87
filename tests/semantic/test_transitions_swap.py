"""A manifest takes over where people talk without a pause, and lacks nothing it must not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import pytest

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from semantic import bounds, rebuilding, transitions, upkeep
from semantic import host as hosting
from semantic.embedders import factory
from semantic.host import SemanticHost
from semantic.models import Embedding, Manifest, SemanticJob
from semantic.worker import SemanticWorker
from tests.factories import let_retries_come_due
from tests.semantic.swapping import NEXT, claimed, complete, later
from tests.support.embedding import (
    ScriptedEmbedder,
    active,
    begun,
    has,
    said,
    worker_for,
)
from tests.support.rivals import Rival, gate
from tests.support.waiting import wait_until
from turns.models import Conversation, Message

pytestmark = pytest.mark.django_db(transaction=True)

# of which people say a quarter anew while it is embedded
BATCH: Final = 8
# Batches of a manifest that never catches up.
ENOUGH: Final = 60
MANIFEST: Final = "SELECT FROM semantic_manifest WHERE id = %s FOR UPDATE"
OFFLINE: Final = ErrorCode.SEMANTIC_PROVIDER_OFFLINE


class Talk:
    """People who say something while each batch is embedded, until there were `enough`."""

    def __init__(self, conversation: Conversation, enough: int) -> None:
        self._conversation = conversation
        self.enough = enough
        self.batches = 0
        # asked after each batch, when something is always open
        self.activated = False
        self.asks: Manifest | None = None

    async def __call__(self, _texts: Sequence[str]) -> None:
        self.batches += 1
        if self.batches > self.enough or self.activated:
            return
        await in_thread(
            said, f"more {self.batches}", f"and {self.batches}", conversation=self._conversation
        )
        if self.asks is not None:
            assert await in_thread(is_open, self.asks)
            self.activated = await in_thread(upkeep.activate, self.asks)


def talking(
    count: int, enough: int = ENOUGH
) -> tuple[Talk, ScriptedEmbedder, ScriptedEmbedder]:
    """Return who talks, and two embedders that are busy meanwhile; the first one answers."""
    old = ScriptedEmbedder(batch_items=BATCH)
    new = ScriptedEmbedder(identity=NEXT, batch_items=BATCH)
    active(old)
    messages = said(*(f"before {n}" for n in range(count)))
    talk = Talk(messages[0].conversation, enough)
    old.script, new.script = [talk] * enough, [talk] * enough
    return talk, old, new


def is_open(manifest: Manifest) -> bool:
    open_jobs = SemanticJob.objects.filter(state__in=["queued", "running"])
    return open_jobs.filter(manifest=manifest).exists()


def covers(manifest: Manifest, text: str) -> bool:
    """Whether each message whose text begins so has its vector."""
    messages = Message.objects.filter(text__startswith=text)
    vectors = Embedding.objects.filter(manifest=manifest, message__text__startswith=text)
    return messages.count() == vectors.count() > 0


def test_it_takes_over_while_people_talk_without_a_pause() -> None:
    """A job of it is open at every moment, and it takes over behind the last of what was there:
    both manifests' batches hold twice what is said meanwhile, so there are twice as many."""
    talk, old, new = talking(5 * BATCH)
    talk.asks = begun(new)

    asyncio.run(worker_for(old, new).drain())

    assert talk.activated
    # and those that are stored while it is asked
    assert talk.batches <= 2 * (5 + 5) + 4
    following = Manifest.objects.get(state="active")
    assert following.digest == NEXT.digest
    assert covers(following, "before")
    # the pass has gone on with what was still open then
    assert covers(following, "more")
    assert covers(following, "and")


def test_a_worker_swaps_while_people_talk_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # upkeep looks beside, as soon as it can on busy cores
    talk, old, new = talking(BATCH, enough=5_000)
    monkeypatch.setattr(factory, "from_settings", lambda: new)
    monkeypatch.setattr(hosting, "BUILDING_SECONDS", 0.01)
    answers = Manifest.objects.filter(state="active", digest=NEXT.digest)
    host = SemanticHost(lambda: SemanticWorker(has(old, new)))
    host.start()
    try:
        wait_until(answers.exists, "the next manifest answers")
        assert talk.batches < talk.enough, "people still talked"
        talk.activated = True
        wait_until(lambda: not is_open(answers.get()), "what was open is derived")
    finally:
        host.drain(time.monotonic() + 5)
    assert covers(answers.get(), "before")
    assert covers(answers.get(), "more")


def test_a_rebuild_ends_while_people_talk_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk, old, new = talking(BATCH)
    monkeypatch.setattr(factory, "from_settings", lambda: new)
    monkeypatch.setattr(rebuilding, "PASS_SECONDS", 0.0)

    rebuilt = asyncio.run(rebuilding.rebuild(worker_for(old, new)))

    assert rebuilt.activated
    assert talk.batches < talk.enough, "people still talked"
    assert covers(rebuilt.manifest, "before")


def test_what_was_there_before_is_waited_for(old: Manifest) -> None:
    """Its jobs are as young as any when a manifest is begun."""
    following = begun(ScriptedEmbedder(identity=NEXT))
    assert not transitions.activate_when_complete(following.pk)
    (claim,) = claimed(following)
    assert not transitions.activate_when_complete(following.pk)
    complete(following, claim)
    assert transitions.activate_when_complete(following.pk)


@pytest.mark.parametrize("began", [False, True], ids=["queued", "running"])
def test_what_is_said_later_is_waited_for_once_it_is_open_for_a_lease(
    new: Manifest, *, began: bool
) -> None:
    said("later")
    if began:
        claimed(new)
    assert transitions.lag(new.pk).is_over
    later(bounds.SWAP_LAG_SECONDS)
    assert transitions.lag(new.pk).open
    assert not transitions.activate_when_complete(new.pk)


def test_what_was_open_at_the_swap_is_derived_as_any_new_message(new: Manifest) -> None:
    (message,) = said("later")
    assert transitions.activate_when_complete(new.pk)
    complete(new, *claimed(new))
    assert Embedding.objects.filter(manifest=new, message=message).exists()


def test_a_message_that_was_there_and_failed_is_waited_for_through_its_rounds(
    old: Manifest,
) -> None:
    """Its later jobs are new, but it is not; when it is given up, that holds up nothing."""
    following = begun(ScriptedEmbedder(identity=NEXT))
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        # what is said meanwhile is derived, so the provider is there
        said("later")
        lost, *others = claimed(following)
        complete(following, *others)
        transitions.fail([(lost, ErrorCode.PROVIDER_REJECTED)])
        if SemanticJob.objects.filter(retry_at__isnull=False).exists():
            assert not transitions.activate_when_complete(following.pk)
            let_retries_come_due()
            assert transitions.reconcile().retried == 1
            assert not transitions.activate_when_complete(following.pk)
    assert transitions.activate_when_complete(following.pk)


def test_a_failure_of_something_later_is_waited_for_until_the_provider_is_there_again(
    new: Manifest,
) -> None:
    """One message that fails again and again does not keep the others from being found."""
    said("one", "two")
    first, second = claimed(new)
    transitions.fail([(first, OFFLINE)])
    assert transitions.lag(new.pk) == transitions.Lag(open=False, failed=True)
    assert not transitions.activate_when_complete(new.pk)
    complete(new, second)
    assert transitions.activate_when_complete(new.pk)
    let_retries_come_due()
    transitions.reconcile()
    complete(new, *claimed(new))
    assert Embedding.objects.filter(manifest=new).count() == 3


def test_an_edit_after_it_was_covered_counts_as_something_new(new: Manifest) -> None:
    Message.objects.update(text="Other words", digest="other")
    assert not Embedding.objects.exists()
    assert transitions.activate_when_complete(new.pk)
    complete(new, *claimed(new))
    assert Embedding.objects.get().digest == "other"


def test_what_was_let_down_and_said_anew_is_not_held_against_the_provider(
    old: Manifest,
) -> None:
    following = begun(ScriptedEmbedder(identity=NEXT))
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        transitions.fail([(claim, OFFLINE) for claim in claimed(following)])
        let_retries_come_due()
        transitions.reconcile()
    assert transitions.shortfall(following.pk).let_down == 1
    assert not transitions.activate_when_complete(following.pk)
    Message.objects.update(text="Other words", digest="other")
    complete(following, *claimed(following))
    assert transitions.activate_when_complete(following.pk)


def test_of_two_workers_that_swap_at_once_one_does(new: Manifest, database_url: str) -> None:
    said("later")
    with gate(database_url, MANIFEST, new.pk) as held:
        both = [
            Rival(lambda: transitions.activate_when_complete(new.pk)).until_it_waits()
            for _ in range(2)
        ]
        held.open()
    assert sorted(one.result() for one in both) == [False, True]
    assert list(Manifest.objects.filter(state="active")) == [new]


def test_a_batch_may_be_claimed_by_a_pass_whose_time_is_over() -> None:
    """Or it would never do anything where it is given none."""
    embedder = ScriptedEmbedder(batch_items=1)
    active(embedder)
    said("one", "two")
    worker = worker_for(embedder)
    assert asyncio.run(worker.drain(seconds=0)).completed == 1
    assert asyncio.run(worker.drain(seconds=0)).completed == 1
