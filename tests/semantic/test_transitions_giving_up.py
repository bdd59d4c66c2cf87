"""What a manifest gave up is judged as a whole, and tried anew where it keeps it back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest

from recovery.errors import ErrorCode, ProviderFailed
from semantic import bounds, transitions, upkeep
from semantic.models import Embedding, Manifest, SemanticJob
from tests.factories import let_retries_come_due
from tests.semantic.swapping import NEXT, claimed, complete, later
from tests.support.embedding import (
    Action,
    ScriptedEmbedder,
    active,
    begun,
    expire_leases,
    said,
    worker_for,
)
from turns.models import Message

pytestmark = pytest.mark.django_db(transaction=True)

OFFLINE: Final = ErrorCode.SEMANTIC_PROVIDER_OFFLINE


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
