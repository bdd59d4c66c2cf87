"""A connection lost while an attempt's end commits: it is written once, and counted once.

A worker asks again once. What the first call did is found by the second, whether it had
committed by then, was still under way, or never arrived.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import psycopg
import pytest
from django.db import connection

from recovery.errors import ErrorCode, ProviderFailed
from recovery.executor import THREADS, in_thread
from semantic.models import Embedding, Manifest, SemanticJob, SemanticReceipt
from semantic.worker import Drained
from tests.contract.test_unknown_commits import lossy, reopen_connections
from tests.support.embedding import ScriptedEmbedder, active, expire_leases, said, worker_for
from tests.support.late_commits import let_arrive_once_asked_again
from tests.support.pgproxy import Proxy, When
from tests.support.rivals import Gate, gate

__all__ = ["lossy"]

pytestmark = pytest.mark.django_db(transaction=True)

OFFLINE: Final = ErrorCode.SEMANTIC_PROVIDER_OFFLINE
# A text that only the statement has; each is its own transaction.
PERSIST: Final = b"INSERT INTO semantic_embedding"
FAIL: Final = b"SET state = 'failed'"
# What each comes to last: the first call holds all else by then, and the second waits for it.
LAST: Final = {
    PERSIST: "SELECT FROM semantic_manifest FOR UPDATE",
    FAIL: "INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, "
    "attempt, outcome, error_code) SELECT id, message_id, 1, 1, 'failed', 'x' "
    "FROM semantic_semanticjob",
}
END_ALL_OTHERS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def open_every_session() -> None:
    """Let every executor thread have its session."""
    barrier = threading.Barrier(THREADS)

    def ensure() -> None:
        barrier.wait(60)
        connection.ensure_connection()

    await asyncio.gather(*(in_thread(ensure) for _ in range(THREADS)))


def begin(embedder: ScriptedEmbedder) -> Manifest:
    manifest = active(embedder)
    said("one", "two")
    return manifest


def ends() -> list[tuple[str, str, int]]:
    jobs = SemanticJob.objects.order_by("pk")
    return [(job.state, job.error_code, job.attempts) for job in jobs]


def told() -> list[tuple[str, int]]:
    receipts = SemanticReceipt.objects.order_by("pk")
    return [(receipt.outcome, receipt.attempt) for receipt in receipts]


async def drained(
    lossy: Proxy, database_url: str, embedder: ScriptedEmbedder, when: When, *, statement: bytes
) -> Drained:
    """Return what a pass came to that lost its connection at the statement.

    One that is late waits at the server until the second call waits behind it.
    """
    gates: list[Gate] = []

    with ExitStack() as stack:

        def hold() -> None:
            gates.append(stack.enter_context(gate(database_url, LAST[statement])))

        lossy.arm(1, when, statement=statement, hold=hold)
        passing = worker_for(embedder).drain()
        if when == "late":
            arrival = asyncio.to_thread(let_arrive_once_asked_again, lossy, gates)
            result, _ = await asyncio.gather(passing, arrival)
        else:
            result = await passing
    assert lossy.lost.is_set()
    return result


@pytest.mark.parametrize("when", ["before", "after", "late"])
async def test_a_result_whose_commit_was_lost_is_kept_once(
    lossy: Proxy, database_url: str, when: When
) -> None:
    await reopen_connections()
    embedder = ScriptedEmbedder()
    await in_thread(begin, embedder)
    try:
        result = await drained(lossy, database_url, embedder, when, statement=PERSIST)
        assert result == Drained(completed=2)
        assert await in_thread(ends) == [("completed", "", 1)] * 2
        assert await in_thread(told) == [("completed", 1)] * 2
        assert await in_thread(Embedding.objects.count) == 2
        assert embedder.calls == [["one", "two"]], "it is not computed again"
    finally:
        await reopen_connections()


@pytest.mark.parametrize("when", ["before", "after", "late"])
async def test_a_failure_whose_commit_was_lost_is_told_once(
    lossy: Proxy, database_url: str, when: When
) -> None:
    await reopen_connections()
    embedder = ScriptedEmbedder(ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE))
    await in_thread(begin, embedder)
    try:
        result = await drained(lossy, database_url, embedder, when, statement=FAIL)
        assert result == Drained(failed=2, error_code=OFFLINE)
        assert await in_thread(ends) == [("failed", OFFLINE.value, 1)] * 2
        assert await in_thread(told) == [("failed", 1)] * 2
        assert embedder.calls == [["one", "two"]]
    finally:
        await reopen_connections()


async def test_a_result_is_kept_where_every_session_of_the_process_was_lost(
    database_url: str,
) -> None:
    """As when the database restarts: none of the other threads has one that is good either."""
    await reopen_connections()

    async def end_sessions(_texts: Sequence[str]) -> None:
        await open_every_session()
        with psycopg.connect(database_url, autocommit=True) as session:
            session.execute(END_ALL_OTHERS)

    embedder = ScriptedEmbedder(end_sessions)
    await in_thread(begin, embedder)
    try:
        assert await worker_for(embedder).drain() == Drained(completed=2)
        assert await in_thread(ends) == [("completed", "", 1)] * 2
        assert await in_thread(told) == [("completed", 1)] * 2
    finally:
        await reopen_connections()


async def test_a_claim_whose_commit_was_lost_is_found_again_by_its_lease(lossy: Proxy) -> None:
    """Nobody knows of it; the pass breaks off, and goes on when the lease is over."""
    await reopen_connections()
    embedder = ScriptedEmbedder()
    await in_thread(begin, embedder)
    worker = worker_for(embedder)
    try:
        lossy.arm(1, "after", statement=b"claim_token = gen_random_uuid()")
        broken = Drained(error_code=ErrorCode.SEMANTIC_DRAIN_FAILED)
        assert await worker.drain() == broken
        assert await in_thread(ends) == [("running", "", 1)] * 2
        assert await worker.drain() == Drained(), "the lease is not over"
        assert embedder.calls == []
        await in_thread(expire_leases)
        assert await worker.drain() == Drained(completed=2)
        assert await in_thread(ends) == [("completed", "", 2)] * 2
    finally:
        await reopen_connections()
