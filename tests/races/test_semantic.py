"""Claim, persist and fail against edits, removals and each other, in both orders.

Whoever changes a message holds it first; then come its jobs, then its vectors. A result that
comes behind is refused, one that came before is removed with what it was made of, and nobody
waits for another in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import pytest
from django.db import connection

from recovery.errors import ErrorCode
from semantic import transitions
from semantic.models import Embedding, Manifest, MessageWords, SemanticJob
from semantic.transitions import Claim, Derived, Persisted
from tests import factories as make
from tests.support.rivals import Rival, gate
from turns import transitions as turn_transitions
from turns.models import Message

pytestmark = pytest.mark.django_db(transaction=True)

OFFLINE: Final = ErrorCode.SEMANTIC_PROVIDER_OFFLINE
MESSAGE: Final = "SELECT FROM turns_message WHERE id = %s FOR UPDATE"
JOB: Final = "SELECT FROM semantic_semanticjob WHERE id = %s FOR UPDATE"
MANIFEST: Final = "SELECT FROM semantic_manifest WHERE id = %s FOR UPDATE"
EDIT: Final = "UPDATE turns_message SET text = 'Other words', digest = 'other' WHERE id = %s"
REMOVE: Final = "DELETE FROM turns_message WHERE id = %s"
NOTHING: Final[frozenset[int]] = frozenset()


@pytest.fixture
def manifest() -> Manifest:
    return make.ManifestFactory.create(active=True)


@pytest.fixture
def message(manifest: Manifest) -> Message:
    return make.MessageFactory.create()


@pytest.fixture
def claim(manifest: Manifest, message: Message) -> Claim:
    (claim,) = transitions.claim_jobs(manifest.pk, limit=9)
    assert claim.message_id == message.pk
    return claim


def persist(*claims: Claim) -> Callable[[], Persisted]:
    manifest_id = SemanticJob.objects.get(pk=claims[0].job_id).manifest_id
    derived = [Derived(claim, make.unit_vector()) for claim in claims]
    return lambda: transitions.persist(manifest_id, derived)


def edit(message: Message) -> Callable[[], object]:
    owner_id = message.conversation.owner_id
    return lambda: turn_transitions.edit_message(owner_id, message.pk, "Other words")


def remove(message: Message) -> Callable[[], object]:
    owner_id = message.conversation.owner_id
    return lambda: turn_transitions.delete_message(owner_id, message.pk)


def remove_conversation(message: Message) -> Callable[[], object]:
    owner_id, conversation_id = message.conversation.owner_id, message.conversation_id
    return lambda: turn_transitions.delete_conversation(owner_id, conversation_id)


def forget(message: Message) -> Callable[[], object]:
    return lambda: transitions.forget(message.pk)


CHANGES: Final[dict[str, Callable[[Message], Callable[[], object]]]] = {
    "edit": edit,
    "removal": remove,
    "removal of the conversation": remove_conversation,
    "forgetting": forget,
}


@contextmanager
def under_way(
    database_url: str, statement: str, *values: object
) -> Iterator[psycopg.Connection]:
    """A transaction that has changed something and not committed yet."""
    with psycopg.connect(database_url) as session:
        session.execute(statement.encode(), values)
        yield session


def no_vector_is_stale() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM semantic_embedding e LEFT JOIN turns_message m "
            "ON m.id = e.message_id AND m.digest = e.digest WHERE m.id IS NULL"
        )
        assert cursor.fetchone() == (0,)


@pytest.mark.parametrize("statement", [EDIT, REMOVE], ids=["edit", "removal"])
def test_a_result_that_waited_for_a_change_is_refused(
    message: Message, claim: Claim, database_url: str, statement: str
) -> None:
    """failures H68, H69: the change goes first"""
    with under_way(database_url, statement, message.pk) as change:
        late = Rival(persist(claim)).until_it_waits()
        assert late.waits_for(change.info.backend_pid)
        change.commit()

    assert late.result() == Persisted(NOTHING, frozenset({claim.job_id}))
    assert not Embedding.objects.exists()
    no_vector_is_stale()


@pytest.mark.parametrize("statement", [EDIT, REMOVE], ids=["edit", "removal"])
def test_a_result_that_waited_for_a_change_that_was_given_up_is_kept(
    message: Message, claim: Claim, database_url: str, statement: str
) -> None:
    with under_way(database_url, statement, message.pk) as change:
        waiting = Rival(persist(claim)).until_it_waits()
        change.rollback()

    assert waiting.result() == Persisted(frozenset({claim.job_id}), NOTHING)
    assert Embedding.objects.get().digest == message.digest


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_waited_for_a_result_takes_it_away(
    message: Message, claim: Claim, database_url: str, change: str
) -> None:
    """failures H68, H69: the result goes first"""
    with gate(database_url, MANIFEST, SemanticJob.objects.get().manifest_id) as held:
        first = Rival(persist(claim)).until_it_waits()
        second = Rival(CHANGES[change](message)).until_it_waits()
        assert second.waits_for(first.pid)
        held.open()

    assert first.result().completed == {claim.job_id}
    assert second.error() is None
    assert not Embedding.objects.exists()
    no_vector_is_stale()
    if "removal" in change:
        assert not SemanticJob.objects.exists()
        assert not MessageWords.objects.exists()
    else:
        assert SemanticJob.objects.get(pk=claim.job_id).state == "invalidated"


@pytest.mark.parametrize("change", CHANGES)
def test_a_result_and_a_change_that_meet_at_the_job_do_not_stand_still(
    message: Message, claim: Claim, database_url: str, change: str
) -> None:
    """The change has the message, and waits for the job that somebody else holds."""
    with gate(database_url, JOB, claim.job_id) as held:
        first = Rival(CHANGES[change](message)).until_it_waits()
        second = Rival(persist(claim)).until_it_waits()
        assert second.waits_for(first.pid)
        held.open()

    assert first.error() is None
    assert second.result().invalidated == {claim.job_id}
    no_vector_is_stale()


def test_a_batch_does_not_wait_for_a_message_while_it_holds_others(
    manifest: Manifest, database_url: str
) -> None:
    """Whoever removes a conversation takes its messages in an order of his own."""
    conversation = make.ConversationFactory.create()
    first, second, third = (
        make.MessageFactory.create(conversation=conversation, text=f"{n}") for n in range(3)
    )
    claims = transitions.claim_jobs(manifest.pk, limit=9)
    with under_way(database_url, REMOVE, third.pk) as removal:
        result = Rival(persist(*claims)).until_it_waits()
        # the others are written and let go by then, whichever the removal takes next
        removal.execute(REMOVE, [first.pk])
        removal.commit()

    written = result.result()
    assert written.completed == {claims[0].job_id, claims[1].job_id}
    assert written.invalidated == {claims[2].job_id}
    assert Embedding.objects.get().message_id == second.pk


def test_a_failed_batch_does_not_wait_for_a_job_while_it_holds_others(
    manifest: Manifest, database_url: str
) -> None:
    """Whoever removes a question and then its answer takes their jobs in that order."""
    conversation = make.ConversationFactory.create()
    first, second = (
        make.MessageFactory.create(conversation=conversation, text=f"{n}") for n in range(2)
    )
    claims = transitions.claim_jobs(manifest.pk, limit=9)
    with under_way(database_url, REMOVE, second.pk) as removal:
        failure = Rival(
            lambda: transitions.fail([(claim, OFFLINE) for claim in claims])
        ).until_it_waits()
        # the other has failed and is let go by then
        removal.execute(REMOVE, [first.pk])
        removal.commit()

    assert failure.result() == 1


def test_a_message_being_changed_is_claimed_as_it_was_and_its_result_refused(
    message: Message, manifest: Manifest, database_url: str
) -> None:
    with under_way(database_url, EDIT, message.pk) as change:
        # the change holds the job, so nobody waits and nobody gets it
        assert transitions.claim_jobs(manifest.pk, limit=9) == []
        change.rollback()
    (claim,) = transitions.claim_jobs(manifest.pk, limit=9)
    with under_way(database_url, EDIT, message.pk) as change:
        change.commit()
    assert persist(claim)().invalidated == {claim.job_id}


def test_an_edit_waits_for_a_claim_and_overtakes_it(
    message: Message, manifest: Manifest, database_url: str
) -> None:
    job = SemanticJob.objects.get()
    with psycopg.connect(database_url) as claimer:
        claimer.execute(
            "UPDATE semantic_semanticjob SET state = 'running', attempts = 1, "
            "write_mark = 1::bigint << 32, claim_token = gen_random_uuid(), "
            "lease_expires_at = statement_timestamp() + interval '9 s' WHERE id = %s",
            [job.pk],
        )
        change = Rival(edit(message)).until_it_waits()
        assert change.waits_for(claimer.info.backend_pid)
        claimer.commit()
    assert change.error() is None
    job.refresh_from_db()
    assert (job.state, job.attempts) == ("invalidated", 1)


@pytest.mark.parametrize("expired", [False, True], ids=["queued", "expired"])
def test_two_workers_never_hold_one_job(
    manifest: Manifest, database_url: str, *, expired: bool
) -> None:
    """Claims of one instant, one of which is held up in the midst of its rows."""
    conversation = make.ConversationFactory.create()
    for n in range(6):
        make.MessageFactory.create(conversation=conversation, text=f"{n}")
    if expired:
        transitions.claim_jobs(manifest.pk, limit=9)
        for job in SemanticJob.objects.all():
            make.expired(job)
    jobs = SemanticJob.objects.order_by("pk")
    with gate(database_url, JOB, jobs[0].pk):
        workers = [
            Rival(lambda: transitions.claim_jobs(manifest.pk, limit=4)) for _ in range(3)
        ]
        claimed = [claim.job_id for worker in workers for claim in worker.result()]
    assert len(claimed) == len(set(claimed))
    assert jobs[0].pk not in claimed


def test_a_lease_lost_while_the_result_was_on_its_way_counts_once(
    message: Message, claim: Claim, manifest: Manifest, database_url: str
) -> None:
    """behaviour U4: the reclaim goes first"""
    make.expired(SemanticJob.objects.get())
    with gate(database_url, MESSAGE, message.pk) as held:
        late = Rival(persist(claim)).until_it_waits()
        (again,) = transitions.claim_jobs(manifest.pk, limit=9)
        held.open()
    assert late.result().invalidated == {claim.job_id}
    assert persist(again)().completed == {again.job_id}
    job = SemanticJob.objects.get()
    assert (job.state, job.attempts) == ("completed", 2)
    assert Embedding.objects.count() == 1


def test_a_result_under_way_is_not_reclaimed(
    message: Message, claim: Claim, manifest: Manifest, database_url: str
) -> None:
    """behaviour U4: the result goes first"""
    make.expired(SemanticJob.objects.get())
    with gate(database_url, MANIFEST, manifest.pk) as held:
        result = Rival(persist(claim)).until_it_waits()
        assert transitions.claim_jobs(manifest.pk, limit=9) == []
        held.open()
    assert result.result().completed == {claim.job_id}
    assert transitions.claim_jobs(manifest.pk, limit=9) == []


def test_the_same_result_sent_twice_at_once_is_kept_once(
    message: Message, claim: Claim, database_url: str
) -> None:
    with gate(database_url, JOB, claim.job_id) as held:
        both = [Rival(persist(claim)).until_it_waits() for _ in range(2)]
        held.open()
    assert [one.result().completed for one in both] == [{claim.job_id}] * 2
    assert Embedding.objects.count() == 1


@pytest.mark.parametrize("first", ["result", "failure"])
def test_of_a_result_and_a_failure_of_one_attempt_one_counts(
    message: Message, claim: Claim, database_url: str, first: str
) -> None:
    acts: dict[str, Callable[[], object]] = {
        "result": persist(claim),
        "failure": lambda: transitions.fail([(claim, OFFLINE)]),
    }
    with gate(database_url, JOB, claim.job_id) as held:
        one = Rival(acts.pop(first)).until_it_waits()
        ((_, other),) = acts.items()
        two = Rival(other).until_it_waits()
        held.open()
    one.result()
    two.result()
    job = SemanticJob.objects.get()
    assert Embedding.objects.exists() == (job.state == "completed")
    assert job.state in {"completed", "failed"}
