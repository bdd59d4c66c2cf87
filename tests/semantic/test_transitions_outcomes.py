"""How attempts end: with a vector, with a code, or too late."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from django.db import IntegrityError, connection, transaction

from recovery.constraints import violated_constraint
from recovery.errors import ErrorCode
from semantic import bounds, transitions
from semantic.models import Embedding, Manifest, SemanticJob, SemanticReceipt
from semantic.transitions import Claim, Derived, Persisted
from tests import factories as make
from turns.models import Message

pytestmark = pytest.mark.django_db

OFFLINE: Final = ErrorCode.SEMANTIC_PROVIDER_OFFLINE
NOTHING: Final[frozenset[int]] = frozenset()
# What a worker that ignores its fence would send; `mark` is what it knows of the row.
LATE: Final = """
    WITH done AS (
        UPDATE semantic_semanticjob SET state = 'completed', write_mark = %(mark)s,
            finished_at = statement_timestamp() WHERE id = %(job)s RETURNING *
    )
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT manifest_id, message_id, conversation_id, person_id, id, %(attempt)s, %(digest)s,
        array_fill(1::real, ARRAY[8])::vector FROM done
"""
# Another job for what a job has done already: no rule of the database is against it.
DOUBLED: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
        digest, state, error_code, round, attempts, write_mark)
    SELECT manifest_id, message_id, conversation_id, person_id, digest, 'queued', '', 1, 0, 0
    FROM semantic_semanticjob WHERE id = %s
"""


@pytest.fixture
def manifest() -> Manifest:
    return make.ManifestFactory.create(active=True)


def claimed(manifest: Manifest, count: int = 1) -> list[Claim]:
    """Say so many messages and claim their jobs."""
    conversation = make.ConversationFactory.create()
    for n in range(count):
        make.MessageFactory.create(conversation=conversation, text=f"Text {n}")
    claims = transitions.claim_jobs(manifest.pk, limit=count)
    assert len(claims) == count
    return claims


def derived(*claims: Claim) -> list[Derived]:
    return [Derived(claim, make.unit_vector(1, n)) for n, claim in enumerate(claims)]


def edit(claim: Claim, text: str = "Other words") -> None:
    Message.objects.filter(pk=claim.message_id).update(text=text, digest=text)


def reclaimed(claim: Claim) -> Claim:
    """Let the lease be over and another take the job."""
    make.expired(SemanticJob.objects.get(pk=claim.job_id))
    limit = bounds.BATCH_ITEMS
    (again,) = transitions.claim_jobs(_manifest_of(claim), limit=limit)
    assert again.job_id == claim.job_id
    return again


def _manifest_of(claim: Claim) -> int:
    return SemanticJob.objects.get(pk=claim.job_id).manifest_id


def numbers(kept: Embedding) -> Any:
    return np.asarray(kept.vector, np.float32)


def receipts(claim: Claim) -> list[tuple[int, str, str]]:
    mine = SemanticReceipt.objects.filter(job_id=claim.job_id).order_by("pk")
    return list(mine.values_list("attempt", "outcome", "error_code"))


def test_a_vector_is_kept_with_its_job_its_digest_and_a_receipt(manifest: Manifest) -> None:
    (claim,) = claimed(manifest)
    vector = make.unit_vector(0.6, 0.8)

    persisted = transitions.persist(manifest.pk, [Derived(claim, vector)])

    assert persisted == Persisted(frozenset({claim.job_id}), NOTHING)
    kept = Embedding.objects.get()
    job = SemanticJob.objects.get(pk=claim.job_id)
    assert np.array_equal(numbers(kept), vector)
    assert (kept.job_id, kept.attempt, kept.digest) == (job.pk, 1, claim.digest)
    assert (kept.person_id, kept.conversation_id) == (job.person_id, job.conversation_id)
    assert (job.state, job.error_code) == ("completed", "")
    assert receipts(claim) == [(1, "completed", "")]


def test_each_of_a_batch_gets_its_own_vector(manifest: Manifest) -> None:
    claims = claimed(manifest, 5)

    persisted = transitions.persist(manifest.pk, derived(*reversed(claims)))

    assert persisted.completed == {claim.job_id for claim in claims}
    for n, claim in enumerate(reversed(claims)):
        kept = Embedding.objects.get(job_id=claim.job_id)
        assert np.array_equal(numbers(kept), make.unit_vector(1, n))


def test_of_nothing_nothing_is_written(manifest: Manifest) -> None:
    assert transitions.persist(manifest.pk, []) == Persisted(NOTHING, NOTHING)
    assert transitions.fail([]) == 0


def test_an_edit_in_mid_call_invalidates_the_late_result(manifest: Manifest) -> None:
    """failure H68: superseded, not failed, and not tried again with the old text"""
    edited, kept = claimed(manifest, 2)
    edit(edited)

    persisted = transitions.persist(manifest.pk, derived(edited, kept))

    assert persisted == Persisted(frozenset({kept.job_id}), frozenset({edited.job_id}))
    assert Embedding.objects.get().job_id == kept.job_id
    assert receipts(edited) == [(1, "invalidated", "")]
    assert SemanticJob.objects.get(pk=edited.job_id).state == "invalidated"
    (again,) = transitions.claim_jobs(manifest.pk, limit=9)
    assert again.text == "Other words"


def test_the_new_text_is_embedded_while_the_old_result_is_still_to_come(
    manifest: Manifest,
) -> None:
    """failure H68"""
    (old,) = claimed(manifest)
    edit(old)
    (new,) = transitions.claim_jobs(manifest.pk, limit=9)
    transitions.persist(manifest.pk, derived(new))

    assert transitions.persist(manifest.pk, derived(old)).invalidated == {old.job_id}

    assert Embedding.objects.get().job_id == new.job_id


def test_an_edit_back_to_the_old_words_does_not_revive_the_old_attempt(
    manifest: Manifest,
) -> None:
    (claim,) = claimed(manifest)
    edit(claim)
    Message.objects.filter(pk=claim.message_id).update(text=claim.text, digest=claim.digest)

    assert transitions.persist(manifest.pk, derived(claim)).invalidated == {claim.job_id}

    assert not Embedding.objects.exists()


@pytest.mark.parametrize("gone", ["message", "conversation", "person"])
def test_what_is_removed_in_mid_call_stays_removed(manifest: Manifest, gone: str) -> None:
    """failures H69, H84"""
    (claim,) = claimed(manifest)
    message = Message.objects.get(pk=claim.message_id)
    {
        "message": message,
        "conversation": message.conversation,
        "person": message.conversation.owner,
    }[gone].delete()

    persisted = transitions.persist(manifest.pk, derived(claim))

    assert persisted == Persisted(NOTHING, frozenset({claim.job_id}))
    assert not Embedding.objects.exists()
    assert not SemanticJob.objects.exists()
    assert receipts(claim) == [(1, "invalidated", "")]


def test_a_late_result_of_a_retired_manifest_is_refused(manifest: Manifest) -> None:
    """failure H71"""
    (claim,) = claimed(manifest)
    make.ManifestFactory.create(active=True)

    assert transitions.persist(manifest.pk, derived(claim)).invalidated == {claim.job_id}

    assert not Embedding.objects.exists()
    assert SemanticJob.objects.get(pk=claim.job_id).state == "invalidated"


def test_a_result_is_not_kept_under_another_manifest(manifest: Manifest) -> None:
    (claim,) = claimed(manifest)
    following = make.ManifestFactory.create()

    assert transitions.persist(following.pk, derived(claim)).completed == NOTHING

    assert not Embedding.objects.exists()


def test_of_a_job_reclaimed_only_the_last_attempt_counts(manifest: Manifest) -> None:
    """behaviour U4, failure H12"""
    (first,) = claimed(manifest)
    second = reclaimed(first)
    assert transitions.persist(manifest.pk, derived(second)).completed == {second.job_id}

    assert transitions.persist(manifest.pk, derived(first)).invalidated == {first.job_id}

    job = SemanticJob.objects.get(pk=first.job_id)
    assert (job.state, job.attempts) == ("completed", 2)
    assert Embedding.objects.get().attempt == 2
    assert receipts(first) == [(2, "completed", ""), (1, "invalidated", "")]


def test_a_late_result_does_not_disturb_the_attempt_that_runs(manifest: Manifest) -> None:
    (first,) = claimed(manifest)
    second = reclaimed(first)

    assert transitions.persist(manifest.pk, derived(first)).invalidated == {first.job_id}
    assert transitions.fail([(first, OFFLINE)]) == 0

    assert SemanticJob.objects.get(pk=first.job_id).state == "running"
    assert transitions.persist(manifest.pk, derived(second)).completed == {second.job_id}


@pytest.mark.parametrize(
    ("mark", "attempt", "rule"),
    [
        ((1 << 32) | 1, 1, "semantic_semanticjob_fence_presented"),
        ((2 << 32) | 1, 1, "semantic_"),
        ((2 << 32), 2, "semantic_semanticjob_fence"),
    ],
)
def test_a_late_result_by_raw_sql_is_refused(
    manifest: Manifest, mark: int, attempt: int, rule: str
) -> None:
    """The old worker's own attempt; one that forges the mark; one that moves none."""
    (first,) = claimed(manifest)
    reclaimed(first)

    assert _refused(first, mark, attempt).startswith(rule)

    assert not Embedding.objects.exists()


def test_a_late_result_of_the_old_words_by_raw_sql_is_refused(manifest: Manifest) -> None:
    (claim,) = claimed(manifest)
    edit(claim)

    assert _refused(claim, (1 << 32) | 9, 1) in {
        "semantic_semanticjob_moves",
        "semantic_semanticjob_end_is_final",
    }

    assert not Embedding.objects.exists()


def test_a_result_of_a_retired_manifest_by_raw_sql_is_refused(manifest: Manifest) -> None:
    (claim,) = claimed(manifest)
    make.ManifestFactory.create(active=True)

    assert _refused(claim, (1 << 32) | 9, 1) == "semantic_embedding_is_of_its_message"


def _refused(claim: Claim, mark: int, attempt: int) -> str:
    """Return the rule that refuses a result sent past the functions."""
    values: dict[str, Any] = {
        "job": claim.job_id,
        "mark": mark,
        "attempt": attempt,
        "digest": claim.digest,
    }
    with (
        pytest.raises(IntegrityError) as refused,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(LATE, values)
    return violated_constraint(refused.value)


def test_an_expired_lease_that_nobody_took_over_still_counts(manifest: Manifest) -> None:
    (claim,) = claimed(manifest)
    make.expired(SemanticJob.objects.get(pk=claim.job_id))

    assert transitions.persist(manifest.pk, derived(claim)).completed == {claim.job_id}


def test_persisting_twice_writes_nothing_twice(manifest: Manifest) -> None:
    claims = claimed(manifest, 3)
    results = derived(*claims)
    edit(claims[0])
    persisted = transitions.persist(manifest.pk, results)

    assert transitions.persist(manifest.pk, results) == persisted

    assert Embedding.objects.count() == 2
    assert SemanticReceipt.objects.count() == 3


def test_one_vector_of_the_wrong_size_spoils_no_row(manifest: Manifest) -> None:
    claims = claimed(manifest, 2)
    wrong = [Derived(claim, make.unit_vector(dimensions=16)) for claim in claims]

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        transitions.persist(manifest.pk, wrong)

    assert violated_constraint(refused.value) == "semantic_embedding_is_of_its_message"
    assert not SemanticJob.objects.exclude(state="running").exists()


def test_a_message_that_has_its_vector_by_another_job_spoils_no_other(
    manifest: Manifest,
) -> None:
    """By raw SQL a second job can be made. Its result is refused, and the others are kept."""
    (first,) = claimed(manifest)
    transitions.persist(manifest.pk, derived(first))
    with connection.cursor() as cursor:
        cursor.execute(DOUBLED, [first.job_id])
    doubled, other = sorted(claimed(manifest, 2), key=lambda claim: claim.message_id)
    assert doubled.message_id == first.message_id

    persisted = transitions.persist(manifest.pk, derived(doubled, other))

    assert persisted == Persisted(frozenset({other.job_id}), frozenset({doubled.job_id}))
    assert Embedding.objects.get(message_id=first.message_id).job_id == first.job_id
    assert SemanticJob.objects.get(pk=doubled.job_id).state == "invalidated"
    assert transitions.reconcile().enqueued == 0


def test_a_providers_failure_ends_the_job_and_lets_another_follow_later(
    manifest: Manifest,
) -> None:
    """behaviour U1"""
    (claim,) = claimed(manifest)

    assert transitions.fail([(claim, OFFLINE)]) == 1

    job = SemanticJob.objects.get(pk=claim.job_id)
    assert (job.state, job.error_code, job.attempts) == ("failed", OFFLINE.value, 1)
    assert job.retry_at is not None
    assert job.finished_at is not None
    pause = job.retry_at - job.finished_at
    assert pause.total_seconds() == bounds.COOL_DOWN_SECONDS
    assert receipts(claim) == [(1, "failed", OFFLINE.value)]
    assert transitions.claim_jobs(manifest.pk, limit=9) == []


def test_each_of_a_batch_fails_with_its_own_code(manifest: Manifest) -> None:
    first, second = claimed(manifest, 2)

    assert transitions.fail([(first, OFFLINE), (second, ErrorCode.TEXT_NOT_EMBEDDABLE)]) == 2

    jobs = SemanticJob.objects.order_by("pk")
    assert [(job.error_code, job.retry_at is not None) for job in jobs] == [
        (OFFLINE.value, True),
        ("text_not_embeddable", False),
    ]


def test_a_failure_reported_twice_or_too_late_changes_nothing(manifest: Manifest) -> None:
    failed, edited, done = claimed(manifest, 3)
    edit(edited)
    transitions.persist(manifest.pk, derived(done))
    transitions.fail([(failed, OFFLINE)])
    before = list(SemanticJob.objects.order_by("pk").values())

    # what an earlier call has ended counts, as its end may not have been known
    assert transitions.fail([(claim, OFFLINE) for claim in (failed, edited, done)]) == 1

    assert list(SemanticJob.objects.order_by("pk").values()) == before
    assert SemanticReceipt.objects.filter(outcome="failed").count() == 1


def test_a_failed_attempt_brings_no_vector_later(manifest: Manifest) -> None:
    (claim,) = claimed(manifest)
    transitions.fail([(claim, OFFLINE)])

    assert transitions.persist(manifest.pk, derived(claim)).invalidated == {claim.job_id}

    assert SemanticJob.objects.get(pk=claim.job_id).state == "failed"
    assert not Embedding.objects.exists()


def test_receipts_hold_nothing_that_was_said() -> None:
    """behaviour U7"""
    names = {field.name for field in SemanticReceipt._meta.get_fields()}
    assert names == {
        "id", "job_id", "message_id", "manifest_generation", "attempt", "outcome", "error_code",
        "created_at",
    }  # fmt: skip
