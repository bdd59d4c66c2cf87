"""A whole worker whose embedding service takes its requests and never answers.

Contract, "Semantic derivatives": provider execution has a shorter hard timeout than the lease,
and a provider's failure becomes a bounded terminal failure; a process failure leaves the leased
job reclaimable. Failures H13: what hangs until the timeout ends before the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from semantic import bounds, transitions
from semantic.models import Embedding, Manifest, SemanticJob, SemanticReceipt
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import Simulator, in_thread
from tests.simulators.replies import Reply
from tests.support.embedding import cool_down, expire_leases, job_of, said
from tests.support.waiting import wait_until
from tests.support.worker import Worker, WorkerStarter
from turns.models import Message

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., Worker]
TEXT: Final = "Where is the harbour?"
# It holds the connection, and says nothing.
HUNG: Final = Reply(hold_head="hung", match=TEXT)
HUNG_EACH_TIME: Final = Reply(hold_head="hung", match=TEXT, repeat=True)
# Past the provider's timeout, on busy cores.
PATIENCE_SECONDS: Final = 60


@pytest.fixture
def service() -> Iterator[Simulator]:
    """An embedding service on a socket of its own; it answers unless a test says otherwise."""
    with in_thread(wire.computed) as running:
        yield running


@pytest.fixture
def start(start_worker: WorkerStarter, service: Simulator) -> StartWorker:
    """Start workers that derive by the service, on a manifest that answers."""

    def start(**environment: str) -> Worker:
        worker = start_worker(
            EMBEDDINGS_API="openai",
            EMBEDDINGS_BASE_URL=service.base_url,
            EMBEDDINGS_MODEL="scripted",
            EMBEDDINGS_DIMENSIONS=str(wire.DIMENSIONS),
            **environment,
        )
        active = Manifest.objects.filter(state="active")
        wait_until(active.exists, "a manifest answers")
        return worker

    return start


def derived(message: Message) -> bool:
    return Embedding.objects.filter(message=message).exists()


def asked(service: Simulator) -> int:
    """Return how often the service was asked for the text."""
    return sum(TEXT in request.json["input"] for request in service.requests())


def require_given_up_in_time(message: Message, service: Simulator, times: int) -> SemanticJob:
    """The attempt ends before its lease does, by the database's clock, and lets its connection
    go; return its job."""
    service.wait_for_disconnects(times, PATIENCE_SECONDS)
    job = job_of(message)
    ended = SemanticJob.objects.filter(pk=job.pk, state="failed")
    wait_until(ended.exists, "the job has ended")
    job = ended.get()
    assert (job.error_code, job.attempts) == ("semantic_provider_offline", 1)
    assert job.finished_at is not None
    assert job.lease_expires_at is not None
    assert job.finished_at < job.lease_expires_at
    return job


def test_a_hung_provider_is_given_up_before_the_lease_and_tried_anew_after_the_pause(
    start: StartWorker, service: Simulator
) -> None:
    worker = start()
    service.script(HUNG)
    (message,) = said(TEXT)
    service.wait_for_gate("hung")

    job = require_given_up_in_time(message, service, 1)

    assert job.retry_at is not None
    (other,) = said("The harbour is in the north.")
    wait_until(lambda: derived(other), "the worker goes on")
    transitions.reconcile()
    assert list(SemanticJob.objects.filter(message=message)) == [job], "its pause is not over"
    cool_down()
    transitions.reconcile()
    wait_until(lambda: derived(message), "another job derives it")
    jobs = SemanticJob.objects.filter(message=message).order_by("pk")
    assert [(each.state, each.round) for each in jobs] == [("failed", 1), ("completed", 2)]
    assert asked(service) == 2
    assert worker.running


def test_a_provider_that_hangs_each_time_is_asked_so_often_and_no_more(
    start: StartWorker, service: Simulator
) -> None:
    worker = start(DJANGO_SETTINGS_MODULE="tests.support.hurried_embedding_settings")
    service.script(HUNG_EACH_TIME)
    (message,) = said(TEXT)
    rounds = bounds.ROUNDS_AFTER_FAILURE + 1
    for number in range(1, rounds + 1):
        job = require_given_up_in_time(message, service, number)
        assert (job.round, job.retry_at is None) == (number, number == rounds)
        cool_down()
        transitions.reconcile()
    (other,) = said("The harbour is in the north.")
    wait_until(lambda: derived(other), "the worker goes on")
    assert transitions.reconcile().retried == 0
    assert asked(service) == SemanticJob.objects.filter(message=message).count() == rounds
    receipts = SemanticReceipt.objects.filter(message_id=message.pk)
    assert [each.outcome for each in receipts] == ["failed"] * rounds
    assert worker.running


def test_a_worker_killed_in_the_providers_call_leaves_its_job_until_the_lease_is_over(
    start: StartWorker, service: Simulator
) -> None:
    worker = start()
    service.script(HUNG)
    (message,) = said(TEXT)
    service.wait_for_gate("hung")
    worker.kill()
    held = SemanticJob.objects.filter(message=message).values().get()
    assert (held["state"], held["attempts"]) == ("running", 1)

    start()
    (other,) = said("The harbour is in the north.")
    wait_until(lambda: derived(other), "the living worker derives")
    assert SemanticJob.objects.filter(message=message).values().get() == held
    assert asked(service) == 1, "its lease is not over"
    expire_leases()
    wait_until(lambda: derived(message), "the job is claimed again")
    job = job_of(message)
    assert (job.state, job.attempts) == ("completed", 2)
    assert Embedding.objects.get(message=message).attempt == 2
    assert asked(service) == 2
