"""A worker is killed while it derives; its job is claimed again when the lease is over.

Contract, "Semantic derivatives": a second worker may reclaim only a running job whose lease
expired; a process failure leaves the leased job reclaimable. Required direct evidence: worker
death followed by expired-lease reclamation.
"""

from __future__ import annotations

import signal
from typing import Any, Final

import psycopg
import pytest
from django.db import connection

from recovery.bounds import DRAIN_SECONDS
from semantic import transitions
from semantic.models import Embedding, Manifest, SemanticJob, SemanticReceipt
from tests.support.embedding import expire_leases, job_of, said
from tests.support.rivals import gate
from tests.support.waiting import wait_until
from tests.support.worker import WorkerStarter
from turns.models import Message

pytestmark = pytest.mark.django_db(transaction=True)

END_ALL_OTHERS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def answering() -> Manifest:
    """Return the manifest that a worker began, once it answers."""
    active = Manifest.objects.filter(state="active")
    wait_until(active.exists, "a manifest answers")
    return active.get()


def derived(message: Message) -> bool:
    return Embedding.objects.filter(message=message).exists()


def row_of(message: Message) -> dict[str, Any]:
    return dict(SemanticJob.objects.filter(message=message).values().get())


def require_one_vector(message: Message, *, attempts: int) -> None:
    """The job is complete and has exactly one vector, by its last attempt; and so it stays."""
    job = job_of(message)
    assert (job.state, job.error_code, job.attempts) == ("completed", "", attempts)
    embedding = Embedding.objects.get(message=message)
    assert (embedding.job_id, embedding.attempt) == (job.pk, attempts)
    receipts = SemanticReceipt.objects.filter(message_id=message.pk, outcome="completed")
    assert receipts.count() == 1


def every_row() -> list[list[Any]]:
    """Return all that derivation writes, but for how far its look has gone round."""
    vectors = Embedding.objects.order_by("pk").values_list("pk", "job_id", "attempt")
    manifests = Manifest.objects.order_by("pk").values_list("pk", "state")
    jobs, receipts = (
        list(model.objects.order_by("pk").values()) for model in (SemanticJob, SemanticReceipt)
    )
    return [list(vectors), list(manifests), jobs, receipts]


def require_nothing_more() -> None:
    """Whatever runs again changes nothing."""
    before = every_row()
    transitions.reconcile()
    transitions.reconcile()
    assert every_row() == before


@pytest.mark.parametrize(
    "probe", ["semantic.claimed", "semantic.embedded", "semantic.persisting"]
)
def test_a_killed_workers_job_is_claimed_again_only_when_its_lease_is_over(
    probe: str, start_worker: WorkerStarter
) -> None:
    worker = start_worker(stop_at=[probe])
    answering()
    (message,) = said("Where is the harbour?")
    worker.wait_until_reached(probe)
    worker.kill()
    held = row_of(message)
    assert (held["state"], held["attempts"]) == ("running", 1)
    assert not derived(message)

    start_worker()
    (other,) = said("The harbour is in the north.")
    wait_until(lambda: derived(other), "the living worker derives")
    assert row_of(message) == held, "its lease is not over"
    expire_leases()
    wait_until(lambda: derived(message), "the job is claimed again")
    require_one_vector(message, attempts=2)
    require_one_vector(other, attempts=1)
    require_nothing_more()


def test_a_worker_killed_after_the_commit_has_nothing_left_to_claim(
    start_worker: WorkerStarter,
) -> None:
    worker = start_worker(stop_at=["semantic.persisted"])
    answering()
    (message,) = said("Where is the harbour?")
    worker.wait_until_reached("semantic.persisted")
    worker.kill()
    require_one_vector(message, attempts=1)
    start_worker()
    (other,) = said("The harbour is in the north.")
    wait_until(lambda: derived(other), "the living worker derives")
    require_one_vector(message, attempts=1)
    require_nothing_more()


def test_a_worker_killed_inside_persist_leaves_all_of_it_or_nothing(
    start_worker: WorkerStarter, database_url: str
) -> None:
    worker = start_worker(stop_at=["semantic.persisting"])
    answering()
    (message,) = said("Where is the harbour?")
    worker.wait_until_reached("semantic.persisting")
    lock = "SELECT FROM turns_message WHERE id = %s FOR UPDATE"
    with gate(database_url, lock, message.pk) as held:
        worker.release("semantic.persisting")
        with psycopg.connect(database_url, autocommit=True) as session:
            waiting = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"

            def find() -> list[Any]:
                return session.execute(waiting, [held.pid]).fetchall()

            wait_until(find, "persist is held up")
            worker.kill()
            # as the burial of its runtime does
            session.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting})", [held.pid])
            wait_until(lambda: not find(), "what it left in the server is gone")
    assert not derived(message)
    assert row_of(message)["state"] == "running"
    expire_leases()
    start_worker()
    wait_until(lambda: derived(message), "the job is claimed again")
    require_one_vector(message, attempts=2)
    require_nothing_more()


def test_a_late_worker_is_refused_once_its_job_was_claimed_again(
    start_worker: WorkerStarter,
) -> None:
    """The first attempt is held past its lease; another worker completes the second."""
    late = start_worker(stop_at=["semantic.persisting"])
    answering()
    (message,) = said("Where is the harbour?")
    late.wait_until_reached("semantic.persisting")
    expire_leases()
    start_worker()
    wait_until(lambda: derived(message), "the second attempt completes")
    late.release("semantic.persisting")
    (other,) = said("The harbour is in the north.")
    wait_until(lambda: derived(other), "both go on")
    wait_until(lambda: '"semantic.drained"' in late.said(), "the late worker has tried")
    # the late one may have claimed it again itself, before the other was there
    attempts = job_of(message).attempts
    assert attempts in {2, 3}
    require_one_vector(message, attempts=attempts)
    require_nothing_more()


def test_a_worker_that_loses_its_sessions_stores_its_batch_and_claims_the_next(
    start_worker: WorkerStarter, database_url: str
) -> None:
    """As when the database restarts: what was computed is written on another session."""
    worker = start_worker(stop_at=["semantic.persisting"])
    answering()
    (message,) = said("Where is the harbour?")
    worker.wait_until_reached("semantic.persisting")
    with psycopg.connect(database_url, autocommit=True) as session:
        session.execute(END_ALL_OTHERS)
    connection.close()
    worker.release("semantic.persisting")
    wait_until(lambda: derived(message), "its batch is stored")
    (other,) = said("The harbour is in the north.")
    wait_until(lambda: derived(other), "it goes on")
    require_one_vector(message, attempts=1)
    require_one_vector(other, attempts=1)
    assert worker.running
    require_nothing_more()


def test_two_workers_never_hold_one_job(start_worker: WorkerStarter) -> None:
    start_worker()
    start_worker()
    answering()
    messages = said(*(f"message number {n}" for n in range(2_000)))
    wait_until(lambda: Embedding.objects.count() == len(messages), "all are derived")
    jobs = SemanticJob.objects.all()
    assert jobs.exclude(state="completed").count() == 0
    assert jobs.exclude(attempts=1).count() == 0
    assert SemanticReceipt.objects.filter(outcome="completed").count() == len(messages)
    assert SemanticReceipt.objects.exclude(outcome="completed").count() == 0


def test_a_deploy_finishes_the_batch_and_leaves_the_rest_to_the_next_worker(
    start_worker: WorkerStarter,
) -> None:
    worker = start_worker(stop_at=["semantic.embedded"])
    answering()
    (message,) = said("Where is the harbour?")
    worker.wait_until_reached("semantic.embedded")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.said().count('"host.draining"') == 2, "the loops drain")
    (late,) = said("The harbour is in the north.")
    worker.release("semantic.embedded")
    worker.wait(seconds=DRAIN_SECONDS + 15)
    require_one_vector(message, attempts=1)
    assert row_of(late)["state"] == "queued"
    start_worker()
    wait_until(lambda: derived(late), "the next worker derives it")


def test_a_batch_that_does_not_end_in_time_is_left_to_its_lease(
    start_worker: WorkerStarter,
) -> None:
    worker = start_worker(stop_at=["semantic.embedded"])
    answering()
    (message,) = said("Where is the harbour?")
    worker.wait_until_reached("semantic.embedded")
    assert worker.terminate() < DRAIN_SECONDS + 10
    assert row_of(message)["state"] == "running"
    expire_leases()
    start_worker()
    wait_until(lambda: derived(message), "the next worker derives it")
    require_one_vector(message, attempts=2)
