"""The worker's passes: what they complete, what ends jobs, and what leaves them leased."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest
from django.db import OperationalError, connection

from recovery.errors import ErrorCode, ProviderFailed
from recovery.executor import in_thread
from semantic import bounds, transitions
from semantic import worker as working
from semantic.embedders.embedder import Identity
from semantic.models import Embedding, SemanticJob, SemanticReceipt
from semantic.worker import Drained
from tests.support.embedding import (
    Held,
    ScriptedEmbedder,
    active,
    begun,
    expire_leases,
    job_of,
    said,
    vector_of,
    worker_for,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

OFFLINE = ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)


def states() -> list[tuple[str, str, int]]:
    """Return state, code and attempts of every job, oldest first."""
    jobs = SemanticJob.objects.order_by("pk")
    return [(job.state, job.error_code, job.attempts) for job in jobs]


async def drain(worker: working.SemanticWorker) -> Drained:
    return await worker.drain()


def drained(embedder: ScriptedEmbedder) -> Drained:
    """Return what one pass of a worker with this embedder came to."""
    return asyncio.run(worker_for(embedder).drain())


def test_a_pass_derives_everything_that_waits_in_batches() -> None:
    embedder = ScriptedEmbedder(batch_items=2)
    manifest = active(embedder)
    messages = said("one", "two", "three", "four", "five")
    assert drained(embedder) == Drained(completed=5)
    assert embedder.calls == [["one", "two"], ["three", "four"], ["five"]]
    assert states() == [("completed", "", 1)] * 5
    for message in messages:
        vector = Embedding.objects.get(message=message, manifest=manifest)
        assert vector.digest == message.digest
        assert list(vector.vector) == pytest.approx(vector_of(message.text))
    assert drained(embedder) == Drained()
    assert len(embedder.calls) == 3


def test_a_provider_failure_ends_its_jobs_and_the_worker_lives() -> None:
    """behaviour U1"""
    embedder = ScriptedEmbedder(OFFLINE)
    active(embedder)
    (message,) = said("one")
    worker = worker_for(embedder)
    assert asyncio.run(worker.drain()) == Drained(
        failed=1, error_code=ErrorCode.SEMANTIC_PROVIDER_OFFLINE
    )
    assert states() == [("failed", "semantic_provider_offline", 1)]
    receipt = SemanticReceipt.objects.get(message_id=message.pk)
    assert (receipt.outcome, receipt.error_code) == ("failed", "semantic_provider_offline")
    said("two")
    assert asyncio.run(worker.drain()) == Drained(completed=1)


@pytest.mark.parametrize(
    ("code", "stored"),
    [
        (ErrorCode.PROVIDER_TIMEOUT, "semantic_provider_offline"),
        (ErrorCode.PROVIDER_UNAVAILABLE, "semantic_provider_offline"),
        (ErrorCode.PROVIDER_RATE_LIMITED, "provider_rate_limited"),
        (ErrorCode.PROVIDER_AUTH, "provider_auth"),
    ],
)
def test_each_failure_of_a_provider_has_its_code(code: ErrorCode, stored: str) -> None:
    embedder = ScriptedEmbedder(ProviderFailed(code))
    active(embedder)
    said("one")
    assert drained(embedder).failed == 1
    assert states() == [("failed", stored, 1)]


def test_an_outage_costs_the_jobs_of_one_batch_a_pass() -> None:
    embedder = ScriptedEmbedder(OFFLINE, batch_items=2)
    active(embedder)
    said(*"abcdef")
    assert drained(embedder).failed == 2
    assert [state for state, _, _ in states()] == ["failed"] * 2 + ["queued"] * 4
    assert len(embedder.calls) == 1


def test_a_text_without_a_vector_fails_alone() -> None:
    async def second_has_none(texts: object) -> list[object]:
        return [vector_of("one"), ErrorCode.TEXT_NOT_EMBEDDABLE, vector_of("three")]

    embedder = ScriptedEmbedder(second_has_none)
    active(embedder)
    said("one", "two", "three")
    assert drained(embedder) == Drained(completed=2, failed=1)
    assert states()[1] == ("failed", "text_not_embeddable", 1)
    assert Embedding.objects.count() == 2


def test_texts_a_service_went_away_from_fail_as_if_it_had_never_been_there() -> None:
    async def gone_after_the_first(texts: object) -> list[object]:
        return [vector_of("one"), ErrorCode.PROVIDER_TIMEOUT, ErrorCode.PROVIDER_RATE_LIMITED]

    embedder = ScriptedEmbedder(gone_after_the_first)
    active(embedder)
    said("one", "two", "three")
    assert drained(embedder) == Drained(completed=1, failed=2)
    assert [code for _, code, _ in states()] == [
        "",
        "semantic_provider_offline",
        "provider_rate_limited",
    ]


def test_a_processor_that_raises_once_is_contained() -> None:
    """behaviour U2"""
    embedder = ScriptedEmbedder(RuntimeError("private"))
    active(embedder)
    said("one", "two")
    worker = worker_for(embedder)
    broken = Drained(error_code=ErrorCode.SEMANTIC_DRAIN_FAILED)
    assert asyncio.run(worker.drain()) == broken
    assert states() == [("running", "", 1)] * 2
    assert asyncio.run(worker.drain()) == Drained(), "the lease is not over"
    expire_leases()
    assert asyncio.run(worker.drain()) == Drained(completed=2)
    assert states() == [("completed", "", 2)] * 2
    assert Embedding.objects.count() == 2


@pytest.mark.parametrize("broken", ["claim_jobs", "persist"])
def test_a_database_failure_is_contained_and_leaves_the_jobs_to_be_claimed_again(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = ScriptedEmbedder()
    active(embedder)
    said("one")
    worker = worker_for(embedder)
    whole = getattr(transitions, broken)

    def away(*_: object, **__: object) -> object:
        connection.close()
        raise OperationalError

    monkeypatch.setattr(transitions, broken, away)
    failed = Drained(error_code=ErrorCode.SEMANTIC_DRAIN_FAILED)
    assert asyncio.run(worker.drain()) == failed
    monkeypatch.setattr(transitions, broken, whole)
    assert Embedding.objects.count() == 0
    expire_leases()
    assert asyncio.run(worker.drain()) == Drained(completed=1)


def test_what_is_wrong_is_said_once_and_again_after_it_was_well(
    capfd: pytest.CaptureFixture[str],
) -> None:
    embedder = ScriptedEmbedder(RuntimeError("private"), RuntimeError("private"))
    active(embedder)
    worker = worker_for(embedder)
    for text in ("one", "two"):
        said(text)
        asyncio.run(worker.drain())
    said("three")
    asyncio.run(worker.drain())
    embedder.script = [RuntimeError("private")]
    said("four")
    asyncio.run(worker.drain())
    lines = capfd.readouterr().err.splitlines()
    events = [line for line in lines if "semantic.drain_broke_off" in line]
    assert [json.loads(line)["error_code"] for line in events] == ["semantic_drain_failed"] * 2
    assert "private" not in "".join(lines)


def test_a_poison_message_fails_after_its_attempts_and_the_others_are_derived() -> None:
    embedder = ScriptedEmbedder(poison=["bad"])
    active(embedder)
    good = said(*(f"message {n}" for n in range(6)))
    (bad,) = said("bad")
    good += said("later")
    worker = worker_for(embedder)
    for _ in range(3 * bounds.ATTEMPTS):
        asyncio.run(worker.drain())
        expire_leases()
        transitions.reconcile()
    assert [job_of(message).state for message in good] == ["completed"] * 7
    assert (job_of(bad).state, job_of(bad).attempts) == ("failed", bounds.ATTEMPTS)
    assert job_of(bad).error_code == "semantic_attempts_exhausted"
    assert sum("bad" in call for call in embedder.calls) == bounds.ATTEMPTS


def test_the_answering_manifest_goes_before_the_one_that_is_built() -> None:
    old = ScriptedEmbedder(batch_items=2)
    new = ScriptedEmbedder(identity=Identity("test", "next", "1", 8), batch_items=2)
    first = active(old)
    said(*"abcd")
    second = begun(new)
    said("fresh")
    order: list[str] = []

    async def note_old(texts: object) -> None:
        order.append("old")

    async def note_new(texts: object) -> None:
        order.append("new")

    old.script, new.script = [note_old] * 9, [note_new] * 9
    assert asyncio.run(worker_for(old, new).drain()) == Drained(completed=10)
    assert order == ["old"] * 3 + ["new"] * 3
    assert Embedding.objects.filter(manifest=first).count() == 5
    assert Embedding.objects.filter(manifest=second).count() == 5


def test_the_next_manifest_has_its_turn_where_people_go_on_talking() -> None:
    """Something is said while each batch is embedded, so the answering one always has some."""
    old = ScriptedEmbedder(batch_items=2)
    new = ScriptedEmbedder(identity=Identity("test", "better", "1", 8), batch_items=2)
    active(old)
    said("one", "two", "three")
    begun(new)
    turns: list[str] = []

    async def talked(texts: Sequence[str]) -> None:
        turns.append("answering")
        await in_thread(said, f"more {len(turns)}")

    async def had_its_turn(texts: Sequence[str]) -> None:
        turns.append("next")

    old.script, new.script = [talked] * 6, [had_its_turn] * 9
    asyncio.run(worker_for(old, new).drain())
    # What waited before is done first: two batches of it, or a third where what was said
    # meanwhile came before the claim ahead. From then on they take turns.
    before = turns.index("next")
    assert before in (2, 3)
    assert turns[before : before + 4] == ["next", "answering", "next", "answering"]


def test_a_worker_leaves_alone_what_its_process_cannot_embed() -> None:
    embedder = ScriptedEmbedder()
    active(embedder)
    said("one")
    other = ScriptedEmbedder(identity=Identity("test", "other", "1", 8))
    assert drained(other) == Drained()
    assert states() == [("queued", "", 0)]


def test_a_failing_manifest_does_not_keep_another_from_being_built() -> None:
    old = ScriptedEmbedder(OFFLINE, batch_items=2)
    new = ScriptedEmbedder(identity=Identity("test", "next", "1", 8), batch_items=2)
    active(old)
    said(*"abcd")
    begun(new)
    assert asyncio.run(worker_for(old, new).drain()) == Drained(
        completed=4, failed=2, error_code=ErrorCode.SEMANTIC_PROVIDER_OFFLINE
    )


def test_a_hung_provider_is_given_up_before_its_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "PROVIDER_TIMEOUT_SECONDS", 0.2)
    embedder = ScriptedEmbedder(Held())
    active(embedder)
    said("one")
    assert drained(embedder).failed == 1
    job = SemanticJob.objects.get()
    assert job.error_code == "semantic_provider_offline"
    assert job.finished_at is not None
    assert job.lease_expires_at is not None
    assert job.finished_at < job.lease_expires_at


def test_nothing_is_begun_that_its_lease_might_not_outlast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedder = ScriptedEmbedder()
    active(embedder)
    said("one")
    needed = bounds.LEASE_SECONDS - working.PERSIST_SECONDS
    monkeypatch.setattr(bounds, "PROVIDER_TIMEOUT_SECONDS", needed + 0.001)
    assert drained(embedder) == Drained(error_code=ErrorCode.SEMANTIC_DRAIN_FAILED)
    assert embedder.calls == []
    assert states() == [("running", "", 1)]


def test_a_message_edited_in_mid_call_gets_the_vector_of_what_it_says_now() -> None:
    held = Held()
    embedder = ScriptedEmbedder(held)
    active(embedder)
    (message,) = said("old")
    result: list[Drained] = []
    passing = threading.Thread(target=lambda: result.append(drained(embedder)))
    passing.start()
    assert held.reached.wait(60)
    message.text, message.digest = "new", "sha256:new"
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE turns_message SET text = 'new', digest = repeat('0', length(digest)) "
            "WHERE id = %s",
            [message.pk],
        )
    held.released.set()
    passing.join(60)
    assert result[0].invalidated == 1
    assert result[0].completed == 1, "the same pass takes up the new job"
    assert list(Embedding.objects.get().vector) == pytest.approx(vector_of("new"))


def test_a_stopped_worker_finishes_its_batch_and_claims_no_other() -> None:
    held = Held()
    embedder = ScriptedEmbedder(held, batch_items=1)
    active(embedder)
    said("one", "two")
    worker = worker_for(embedder)
    result: list[Drained] = []
    passing = threading.Thread(target=lambda: result.append(asyncio.run(worker.drain())))
    passing.start()
    assert held.reached.wait(60)
    worker.stop_claiming()
    held.released.set()
    passing.join(60)
    assert result == [Drained(completed=1)]
    assert states() == [("completed", "", 1), ("queued", "", 0)]


def test_a_batch_is_embedded_while_the_one_before_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three at once: the second batch is embedded and the third claimed before the first is
    stored."""
    embedder = ScriptedEmbedder(batch_items=1)
    active(embedder)
    said(*"abc")
    stored, persist = threading.Event(), transitions.persist

    def late(*arguments: object) -> object:
        assert stored.wait(60)
        return persist(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transitions, "persist", late)
    result: list[Drained] = []
    passing = threading.Thread(target=lambda: result.append(drained(embedder)))
    passing.start()
    wait_until(lambda: len(embedder.calls) == 2, "the second is embedded")
    running = SemanticJob.objects.filter(state="running")
    wait_until(lambda: running.count() == 3, "the third is claimed")
    stored.set()
    passing.join(60)
    assert result == [Drained(completed=3)]
