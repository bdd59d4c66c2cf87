"""A manifest takes over where people talk without a pause, and lacks nothing it must not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import pytest
from django.db import connection

from recovery.errors import ErrorCode, ProviderFailed
from recovery.executor import in_thread
from semantic import bounds, rebuilding, transitions, upkeep
from semantic import host as hosting
from semantic.embedders import factory
from semantic.embedders.embedder import Identity
from semantic.host import SemanticHost
from semantic.models import Embedding, Manifest, SemanticJob
from semantic.transitions import Claim, Derived
from semantic.worker import SemanticWorker
from tests.factories import let_retries_come_due, unit_vector
from tests.support.embedding import (
    Action,
    ScriptedEmbedder,
    active,
    begun,
    expire_leases,
    has,
    said,
    worker_for,
)
from tests.support.rivals import Rival, gate
from tests.support.waiting import wait_until
from turns.models import Conversation, Message

pytestmark = pytest.mark.django_db(transaction=True)

NEXT: Final = Identity("test", "next", "1", 8)
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


def claimed(manifest: Manifest, count: int = 9) -> list[Claim]:
    return transitions.claim_jobs(manifest.pk, limit=count)


def complete(manifest: Manifest, *claims: Claim) -> None:
    derived = [Derived(claim, unit_vector()) for claim in claims]
    assert len(transitions.persist(manifest.pk, derived).completed) == len(claims)


def later(seconds: float) -> None:
    """Age all that derivation has written by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for table, columns in {
            "semantic_semanticjob": ("created_at", "finished_at", "lease_expires_at"),
            "semantic_manifest": ("created_at", "covered_at"),
            "semantic_embedding": ("created_at",),
        }.items():
            moved = ", ".join(f"{name} = {name} - %(by)s * interval '1 s'" for name in columns)
            cursor.execute(f"UPDATE {table} SET {moved}", {"by": seconds})
        cursor.execute("RESET session_replication_role")


@pytest.fixture
def old() -> Manifest:
    """The manifest that answers, with the vector of one message."""
    manifest = active(ScriptedEmbedder())
    said("there before")
    complete(manifest, *claimed(manifest))
    return manifest


@pytest.fixture
def new(old: Manifest) -> Manifest:
    """The next one, which has derived that message too."""
    manifest = begun(ScriptedEmbedder(identity=NEXT))
    complete(manifest, *claimed(manifest))
    return manifest


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


async def derive_nothing(texts: Sequence[str]) -> list[ErrorCode]:
    return [ErrorCode.TEXT_NOT_EMBEDDABLE] * len(texts)


def derived_by_the_old(count: int) -> tuple[ScriptedEmbedder, list[Message]]:
    """Return an embedder whose manifest answers, and what was said, with its vectors."""
    old = ScriptedEmbedder()
    active(old)
    messages = said(*(f"text {n}" for n in range(count)))
    asyncio.run(worker_for(old).drain())
    return old, messages


def refuse_rounds(old: ScriptedEmbedder, new: ScriptedEmbedder, *script: Action) -> None:
    """Let the next manifest go through every round; `script` says what becomes of each."""
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        new.script = list(script)
        asyncio.run(worker_for(old, new).drain())
        let_retries_come_due()
        while upkeep.reconcile():
            pass


def test_a_manifest_that_gave_up_every_text_does_not_take_over() -> None:
    """One by one each could be a text nobody can embed; all of them are a broken provider."""
    old, messages = derived_by_the_old(6)
    new = ScriptedEmbedder(identity=NEXT)
    following = begun(new)

    refuse_rounds(old, new, ProviderFailed(ErrorCode.PROVIDER_REJECTED, http_status=400))

    assert transitions.lag(following.pk).is_over
    assert not upkeep.activate(following)
    assert transitions.shortfall(following.pk) == transitions.Shortfall(
        let_down=0, lost=6, answering=6, has_vectors=False
    )
    while upkeep.reconcile():
        pass
    assert Embedding.objects.filter(manifest__state="active").count() == len(messages)


def test_a_manifest_whose_embedder_knows_no_text_does_not_take_over() -> None:
    old, messages = derived_by_the_old(30)
    new = ScriptedEmbedder(derive_nothing, identity=NEXT)
    following = begun(new)
    asyncio.run(worker_for(old, new).drain())
    assert not upkeep.activate(following)
    assert Embedding.objects.filter(manifest__state="active").count() == len(messages)


def test_a_manifest_whose_embedder_breaks_on_each_text_does_not_take_over() -> None:
    old, messages = derived_by_the_old(2)
    new = ScriptedEmbedder(identity=NEXT, poison=[message.text for message in messages])
    following = begun(new)
    ended = SemanticJob.objects.filter(manifest=following, state="failed")
    while ended.count() < len(messages):
        asyncio.run(worker_for(old, new).drain())
        expire_leases()
        upkeep.reconcile()
    assert transitions.lag(following.pk).is_over
    assert not upkeep.activate(following)


@pytest.mark.parametrize(
    ("lost", "takes_over"),
    [(bounds.SWAP_LOST_MAX, True), (bounds.SWAP_LOST_MAX + 1, False)],
    ids=["a few", "more"],
)
def test_a_few_texts_that_are_given_up_do_not_keep_a_manifest_and_more_do(
    lost: int, *, takes_over: bool
) -> None:
    derived_by_the_old(3 * lost)
    following = begun(ScriptedEmbedder(identity=NEXT))
    claims = claimed(following, 3 * lost)
    transitions.fail([(claim, ErrorCode.TEXT_NOT_EMBEDDABLE) for claim in claims[:lost]])
    complete(following, *claims[lost:])
    assert upkeep.activate(following) is takes_over


def test_one_text_in_a_hundred_may_be_given_up_however_many_that_are() -> None:
    lost = bounds.SWAP_LOST_MAX + 1
    count = bounds.SWAP_LOST_ONE_IN * lost
    derived_by_the_old(count)
    following = begun(ScriptedEmbedder(identity=NEXT))
    claims = claimed(following, count)
    complete(following, *claims[lost + 1 :])
    transitions.fail([(claim, ErrorCode.TEXT_NOT_EMBEDDABLE) for claim in claims[: lost + 1]])
    assert not upkeep.activate(following)
    # one of these has no vector in the old one any more, so none is lost with it
    Embedding.objects.filter(message_id=claims[0].message_id).delete()
    said("another")
    answering = Manifest.objects.get(state="active")
    complete(answering, *claimed(answering))
    assert upkeep.activate(following)


def test_what_nothing_answers_is_taken_over_by_whatever_there_is() -> None:
    said("one", "two")
    new = ScriptedEmbedder(derive_nothing, identity=NEXT)
    following = begun(new)
    asyncio.run(worker_for(new).drain())
    assert upkeep.activate(following)


def test_what_the_provider_was_not_there_for_is_tried_anew_after_a_longer_pause() -> None:
    """One outage of a quarter of an hour must not keep a manifest for ever."""
    old, _ = derived_by_the_old(3)
    new = ScriptedEmbedder(identity=NEXT, batch_items=2)
    following = begun(new)
    complete(following, *claimed(following, 2))
    refuse_rounds(old, new, ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE))
    assert transitions.shortfall(following.pk).let_down == 1
    new.calls.clear()

    later(bounds.ANEW_SECONDS - 60)
    assert transitions.reconcile().retried == 0
    later(60)
    assert transitions.reconcile().retried == 1
    # it has not succeeded by waiting
    assert not transitions.activate_when_complete(following.pk)
    assert transitions.reconcile().retried == 0
    asyncio.run(worker_for(old, new).drain())

    assert [len(texts) for texts in new.calls] == [1]
    assert upkeep.activate(following)


def test_what_was_said_later_and_let_down_still_keeps_it_while_it_is_tried_anew(
    new: Manifest,
) -> None:
    said("later")
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        transitions.fail([(claim, OFFLINE) for claim in claimed(new)])
        let_retries_come_due()
        transitions.reconcile()
    later(bounds.ANEW_SECONDS)
    assert transitions.reconcile().retried == 1
    assert transitions.lag(new.pk).is_over
    assert not transitions.activate_when_complete(new.pk)
    complete(new, *claimed(new))
    assert transitions.activate_when_complete(new.pk)


def test_what_was_refused_is_tried_anew_only_where_it_keeps_the_manifest() -> None:
    old, _ = derived_by_the_old(2)
    new = ScriptedEmbedder(derive_nothing, identity=NEXT)
    following = begun(new)
    asyncio.run(worker_for(old, new).drain())
    later(bounds.ANEW_SECONDS)
    assert transitions.reconcile().retried == 2
    first, second = claimed(following)
    complete(following, first)
    transitions.fail([(second, ErrorCode.TEXT_NOT_EMBEDDABLE)])
    later(bounds.ANEW_SECONDS)
    assert transitions.reconcile().retried == 0
    assert upkeep.activate(following)


def test_what_was_forgotten_is_not_tried_anew(new: Manifest) -> None:
    (message,) = said("later")
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        for manifest in Manifest.objects.all():
            transitions.fail([(claim, OFFLINE) for claim in claimed(manifest)])
        let_retries_come_due()
        transitions.reconcile()
    transitions.forget(message.pk)
    later(bounds.ANEW_SECONDS)
    assert transitions.reconcile().retried == 0
    assert transitions.activate_when_complete(new.pk)
