"""Claims of jobs: whose attempt it is, and until when."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pgtrigger
import pytest
from django.db import connection
from django.db.models import F

from semantic import bounds, transitions
from semantic.models import Manifest, SemanticJob, SemanticReceipt
from semantic.transitions import Claim
from tests import factories as make

pytestmark = pytest.mark.django_db

LIMIT: Final = 32


@pytest.fixture
def manifest() -> Manifest:
    return make.ManifestFactory.create(active=True)


def say(count: int, *, text: str = "Text") -> list[int]:
    """Say so many messages in a new conversation; return their ids."""
    conversation = make.ConversationFactory.create()
    return [
        make.MessageFactory.create(conversation=conversation, text=f"{text} {n}").pk
        for n in range(count)
    ]


def lose_leases() -> None:
    """Let every lease be over, as when all workers died long ago."""
    for job in SemanticJob.objects.filter(state="running"):
        make.expired(job)


def states() -> list[tuple[str, int]]:
    return list(SemanticJob.objects.order_by("pk").values_list("state", "attempts"))


def test_a_claim_takes_the_oldest_that_wait_and_says_what_is_to_be_embedded(
    manifest: Manifest,
) -> None:
    message_ids = say(3)

    first, second = transitions.claim_jobs(manifest.pk, limit=2)

    assert [first.message_id, second.message_id] == message_ids[:2]
    assert first.text == "Text 0"
    job = SemanticJob.objects.get(pk=first.job_id)
    assert (job.state, job.attempts, job.claim_token) == ("running", 1, first.token)
    assert (job.digest, job.lease_expires_at) == (first.digest, first.lease_expires_at)
    assert states() == [("running", 1), ("running", 1), ("queued", 0)]


def test_what_one_worker_holds_no_other_gets(manifest: Manifest) -> None:
    say(3)
    held = transitions.claim_jobs(manifest.pk, limit=2)
    others = transitions.claim_jobs(manifest.pk, limit=LIMIT)

    assert {claim.job_id for claim in held} & {claim.job_id for claim in others} == set()
    assert transitions.claim_jobs(manifest.pk, limit=LIMIT) == []


def test_a_lease_is_counted_by_the_databases_clock(manifest: Manifest) -> None:
    """failure H72: a claim says when it ends as the row says it"""
    say(1)
    (claim,) = transitions.claim_jobs(manifest.pk, limit=1)

    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    left = claim.lease_expires_at - now
    assert timedelta(0) < left <= timedelta(seconds=bounds.LEASE_SECONDS)


def test_only_an_expired_lease_is_reclaimed_and_counts_another_attempt(
    manifest: Manifest,
) -> None:
    say(1)
    (lost,) = transitions.claim_jobs(manifest.pk, limit=1)
    assert transitions.claim_jobs(manifest.pk, limit=1) == []

    lose_leases()
    (again,) = transitions.claim_jobs(manifest.pk, limit=1)

    assert (again.job_id, again.attempt) == (lost.job_id, 2)
    assert again.token != lost.token


def test_an_expired_lease_goes_before_what_waits(manifest: Manifest) -> None:
    say(1)
    (lost,) = transitions.claim_jobs(manifest.pk, limit=1)
    lose_leases()
    say(2)

    assert [c.job_id for c in transitions.claim_jobs(manifest.pk, limit=LIMIT)] == [lost.job_id]
    assert len(transitions.claim_jobs(manifest.pk, limit=LIMIT)) == 2


def test_the_attempts_are_bounded(manifest: Manifest) -> None:
    say(1)
    for attempt in range(1, bounds.ATTEMPTS + 1):
        (claim,) = transitions.claim_jobs(manifest.pk, limit=LIMIT)
        assert claim.attempt == attempt
        lose_leases()

    assert transitions.claim_jobs(manifest.pk, limit=LIMIT) == []


def test_a_text_that_ends_every_worker_does_not_take_the_others_along(
    manifest: Manifest,
) -> None:
    """A worker that meets it dies with all it holds; the others of its batch are derived."""
    message_ids = say(40)
    poison = message_ids[17]
    for _ in range(200):
        claims = transitions.claim_jobs(manifest.pk, limit=LIMIT)
        if not claims and transitions.reconcile().exhausted == 0:
            break
        if poison in {claim.message_id for claim in claims}:
            lose_leases()
        else:
            complete(manifest, claims)

    job = SemanticJob.objects.exclude(state="completed").get()
    assert (job.message_id, job.state) == (poison, "failed")
    assert (job.error_code, job.attempts) == ("semantic_attempts_exhausted", bounds.ATTEMPTS)
    receipt = SemanticReceipt.objects.get(message_id=poison)
    assert (receipt.outcome, receipt.error_code) == ("failed", "semantic_attempts_exhausted")


def complete(manifest: Manifest, claims: list[Claim]) -> None:
    derived = [transitions.Derived(claim, make.unit_vector()) for claim in claims]
    transitions.persist(manifest.pk, derived)


def test_nothing_is_claimed_for_a_manifest_that_is_retired_or_another(
    manifest: Manifest,
) -> None:
    say(2)
    following = make.ManifestFactory.create(active=True)

    assert transitions.claim_jobs(manifest.pk, limit=LIMIT) == []
    assert transitions.claim_jobs(following.pk, limit=LIMIT) == []
    assert transitions.claim_jobs(0, limit=LIMIT) == []


@pytest.mark.parametrize("letter", ["x", "ö", "漢", "𝛑"])
def test_of_a_long_text_only_the_beginning_is_embedded_in_whole_characters(
    manifest: Manifest, letter: str
) -> None:
    size = len(letter.encode())
    conversation = make.ConversationFactory.create()
    long = letter * (bounds.EMBEDDED_TEXT_MAX_BYTES // size + 1)
    make.MessageFactory.create(answered=True, text=long, conversation=conversation)

    (claim,) = transitions.claim_jobs(manifest.pk, limit=1)

    assert claim.text == letter * (bounds.EMBEDDED_TEXT_MAX_BYTES // size)


def test_what_is_edited_or_removed_is_claimed_no_more(manifest: Manifest) -> None:
    edited, removed = say(2)
    message = make.MessageFactory._meta.model.objects
    message.filter(pk=edited).update(text="Other", digest="other")
    message.filter(pk=removed).delete()

    (claim,) = transitions.claim_jobs(manifest.pk, limit=LIMIT)

    assert (claim.message_id, claim.text, claim.digest) == (edited, "Other", "other")


def put_the_clock_right(seconds: int) -> None:
    """As if the database's clock had been ahead by so much when the leases were given."""
    with pgtrigger.ignore("semantic.SemanticJob:lease_belongs_to_its_claim"):
        SemanticJob.objects.filter(state="running").update(
            lease_expires_at=F("lease_expires_at") + timedelta(seconds=seconds),
            write_mark=F("write_mark") + 1,
        )


def test_a_lease_from_a_clock_that_was_an_hour_ahead_is_over(manifest: Manifest) -> None:
    say(1)
    transitions.claim_jobs(manifest.pk, limit=LIMIT)
    for attempt in range(2, bounds.ATTEMPTS + 1):
        put_the_clock_right(3_600)
        (claim,) = transitions.claim_jobs(manifest.pk, limit=LIMIT)
        assert claim.attempt == attempt
    put_the_clock_right(3_600)
    assert transitions.reconcile().exhausted == 1


def test_a_lease_that_a_statement_behind_it_sees_is_not_over(manifest: Manifest) -> None:
    """A statement that took its time to begin sees leases given after the time it has."""
    say(1)
    transitions.claim_jobs(manifest.pk, limit=LIMIT)
    put_the_clock_right(bounds.LEASE_AHEAD_SECONDS - bounds.LEASE_SECONDS - 5)
    assert transitions.claim_jobs(manifest.pk, limit=LIMIT) == []
