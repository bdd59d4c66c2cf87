"""What failed is tried again; what was missed or left over is put right."""

from __future__ import annotations

import pytest

from recovery.errors import ErrorCode
from semantic import bounds, transitions
from semantic.models import Embedding, MessageWords, SemanticJob, SemanticReceipt
from semantic.transitions import Reconciled
from tests import factories as make
from tests.semantic.filling import (
    IDENTITY,
    NOTHING_TO_DO,
    OTHER,
    behind_the_triggers,
    derive,
    everything,
    fail_all,
    filled,
    say,
)
from turns.models import Message

pytestmark = pytest.mark.django_db


def test_a_failure_is_followed_by_another_job_after_its_pause_so_many_times() -> None:
    say(1)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)
    for number in range(1, bounds.ROUNDS_AFTER_FAILURE + 1):
        assert fail_all(manifest) == 1
        assert transitions.reconcile() == NOTHING_TO_DO  # the pause is not over
        make.let_retries_come_due()
        assert transitions.reconcile() == Reconciled(0, 1, 0, 0, more=False)
        assert transitions.reconcile() == NOTHING_TO_DO
        job = SemanticJob.objects.order_by("pk").last()
        assert job is not None
        assert (job.state, job.round, job.attempts) == ("queued", number + 1, 0)

    fail_all(manifest)
    assert not SemanticJob.objects.filter(retry_at__isnull=False).exists()
    assert SemanticJob.objects.filter(state="failed").count() == 4


@pytest.mark.parametrize("code", ["text_not_embeddable", "semantic_attempts_exhausted"])
def test_what_the_text_is_to_blame_for_is_not_tried_again(code: str) -> None:
    say(1)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)

    fail_all(manifest, ErrorCode(code))

    assert SemanticJob.objects.get().retry_at is None
    assert transitions.reconcile() == NOTHING_TO_DO


def test_a_failure_of_words_that_were_changed_is_not_followed() -> None:
    (message_id,) = say(1)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)
    fail_all(manifest)
    Message.objects.filter(pk=message_id).update(text="New words", digest="new")

    make.let_retries_come_due()
    assert transitions.reconcile() == NOTHING_TO_DO

    assert SemanticJob.objects.filter(state="queued").get().digest == "new"


def test_a_job_whose_last_attempt_was_lost_is_given_up_once() -> None:
    say(1)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)
    for _ in range(bounds.ATTEMPTS):
        assert transitions.reconcile().exhausted == 0
        (claim,) = transitions.claim_jobs(manifest.pk, limit=9)
        make.expired(SemanticJob.objects.get(pk=claim.job_id))

    assert transitions.reconcile() == Reconciled(0, 0, 1, 0, more=False)
    assert transitions.reconcile() == NOTHING_TO_DO

    job = SemanticJob.objects.get()
    assert (job.state, job.error_code) == ("failed", "semantic_attempts_exhausted")
    receipt = SemanticReceipt.objects.get()
    assert (receipt.attempt, receipt.outcome) == (bounds.ATTEMPTS, "failed")


def test_an_attempt_that_is_under_way_is_not_given_up() -> None:
    say(1)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)
    for attempt in range(1, bounds.ATTEMPTS + 1):
        (claim,) = transitions.claim_jobs(manifest.pk, limit=9)
        if attempt < bounds.ATTEMPTS:
            make.expired(SemanticJob.objects.get(pk=claim.job_id))

    assert transitions.reconcile() == NOTHING_TO_DO


def test_of_a_retired_manifest_vectors_and_jobs_are_removed() -> None:
    say(3)
    filled()
    following = filled(OTHER)
    assert Embedding.objects.count() == 6
    assert SemanticJob.objects.count() == 6

    assert transitions.reconcile() == Reconciled(0, 0, 0, 3, more=False)
    assert transitions.reconcile() == NOTHING_TO_DO

    assert set(Embedding.objects.values_list("manifest_id", flat=True)) == {following.pk}
    assert set(SemanticJob.objects.values_list("manifest_id", flat=True)) == {following.pk}


def test_jobs_nobody_claims_any_more_are_removed() -> None:
    say(2)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)
    transitions.claim_jobs(manifest.pk, limit=1)
    transitions.begin(OTHER)

    assert transitions.reconcile().cleared == 2


def test_ten_messages_changed_behind_the_triggers_are_found_and_derived_anew() -> None:
    """failure H70"""
    message_ids = say(20)
    manifest = filled()
    behind_the_triggers(
        "UPDATE turns_message SET text = 'Changed ' || id, digest = 'changed ' || id "
        "WHERE id = ANY(%s)",
        message_ids[:10],
    )

    assert transitions.reconcile() == Reconciled(10, 0, 0, 10, more=False)
    assert transitions.reconcile() == NOTHING_TO_DO

    assert Embedding.objects.count() == 10
    assert derive(manifest) == 10
    kept = Embedding.objects.get(message_id=message_ids[0])
    assert kept.digest == f"changed {message_ids[0]}"
    assert transitions.reconcile() == NOTHING_TO_DO


@pytest.mark.parametrize("lost", ["vector", "vector and job", "enqueuing"])
def test_what_is_missing_is_enqueued_again(lost: str) -> None:
    manifest = filled()
    if lost == "enqueuing":
        conversation = make.ConversationFactory.create()
        behind_the_triggers(
            "INSERT INTO turns_message (conversation_id, role, state, text, digest, "
            "finished_at) VALUES (%s, 'user', 'complete', 'Unheard', 'd', now())",
            conversation.pk,
        )
    else:
        say(1)
        derive(manifest)
        Embedding.objects.all().delete()
        if lost == "vector and job":
            behind_the_triggers("DELETE FROM semantic_semanticjob")

    assert transitions.reconcile() == Reconciled(1, 0, 0, 0, more=False)
    assert transitions.reconcile() == NOTHING_TO_DO

    assert derive(manifest) == 1
    assert MessageWords.objects.count() == 1


def test_a_second_look_changes_nothing() -> None:
    say(3)
    filled()
    transitions.begin(OTHER)
    make.MessageFactory.create(assistant=True)
    while transitions.reconcile() != NOTHING_TO_DO:
        pass
    before = everything()

    assert transitions.reconcile() == NOTHING_TO_DO

    assert everything() == before
