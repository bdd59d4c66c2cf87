"""The thread of a worker process that derives: woken, looking, breaking, ending."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError

from recovery.errors import ErrorCode, ProviderFailed
from semantic import host as hosting
from semantic import tasks, transitions, upkeep
from semantic.embedders import factory
from semantic.embedders.embedder import Identity
from semantic.host import SemanticHost
from semantic.models import Embedding, Manifest, SemanticJob
from semantic.worker import SemanticWorker
from tests.support.embedding import (
    Held,
    ScriptedEmbedder,
    active,
    begun,
    cool_down,
    has,
    job_of,
    said,
    worker_for,
)
from tests.support.waiting import wait_until
from turns import events
from turns.models import Message

pytestmark = pytest.mark.django_db(transaction=True)

StartHost = Callable[..., SemanticHost]


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> ScriptedEmbedder:
    """The embedder that the settings name."""
    scripted = ScriptedEmbedder()
    monkeypatch.setattr(factory, "from_settings", lambda: scripted)
    return scripted


@pytest.fixture
def start_host(
    embedder: ScriptedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartHost]:
    """Start hosts that look when they are woken, unless they `look`; each ends afterwards."""
    started: list[SemanticHost] = []
    monkeypatch.setattr(hosting, "RESTART_MIN_SECONDS", 0.05)

    def start(*more: ScriptedEmbedder, look: bool = False, worker: Any = None) -> SemanticHost:
        monkeypatch.setattr(hosting, "LOOK_SECONDS", 0.05 if look else 3_600)
        if not look:
            monkeypatch.setattr(hosting, "UPKEEP_SECONDS", 3_600)
        host = SemanticHost(worker or (lambda: SemanticWorker(has(embedder, *more))))
        host.start()
        started.append(host)
        return host

    yield start
    for host in started:
        host.drain(time.monotonic() + 5)


def answering() -> Manifest:
    active = Manifest.objects.filter(state="active")
    wait_until(active.exists, "a manifest answers")
    return active.get()


def derived(*messages: Message) -> bool:
    vectors = Embedding.objects.filter(message__in=messages, manifest__state="active")
    return vectors.count() == len(messages)


def test_a_first_start_begins_the_configured_manifest_and_lets_it_answer(
    start_host: StartHost, embedder: ScriptedEmbedder
) -> None:
    before = said("said before there was a search")
    start_host()
    assert answering().digest == embedder.identity.digest
    wait_until(lambda: derived(*before), "what was said before is derived")
    assert answering().generation == 1


def test_a_commit_of_this_process_wakes_it(start_host: StartHost) -> None:
    host = start_host()
    answering()
    events.listen(host.wake)
    try:
        # the first may be found by what the start itself wakes
        for text in ("one", "two"):
            (message,) = said(text)
            events.announce(message.conversation_id)
            wait_until(partial(derived, message), "the commit was heard")
    finally:
        events.stop_listening(host.wake)


def test_the_beat_wakes_the_host_of_its_process(start_host: StartHost) -> None:
    hosting.serve_with(start_host())
    try:
        answering()
        (message,) = said("one")
        tasks.drain()
        wait_until(lambda: derived(message), "it was woken")
    finally:
        hosting.serve_with(None)
    tasks.drain()  # without a host it is a hint that is lost


def test_what_other_processes_commit_is_found_by_looking(start_host: StartHost) -> None:
    start_host(look=True)
    answering()
    (message,) = said("one")
    wait_until(lambda: derived(message), "it was found")


def test_a_provider_that_is_away_at_the_start_is_asked_again(
    start_host: StartHost, embedder: ScriptedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "REST_MIN_SECONDS", 0.02)
    asked: list[int] = []

    def away_twice() -> ScriptedEmbedder:
        asked.append(1)
        if len(asked) < 3:
            raise ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)
        return embedder

    monkeypatch.setattr(factory, "from_settings", away_twice)
    start_host()
    answering()
    assert len(asked) == 3


def test_it_begins_its_manifest_once_and_not_again_when_another_version_begins_its_own(
    start_host: StartHost, embedder: ScriptedEmbedder
) -> None:
    newer = ScriptedEmbedder(identity=Identity("test", "newer", "2", 8))
    start_host(newer, look=True)
    answering()
    transitions.begin(newer.identity)
    wait_until(lambda: answering().digest == newer.identity.digest, "the newer one answers")
    (message,) = said("one")
    wait_until(lambda: derived(message), "it is derived for the newer one")
    assert Manifest.objects.count() == 2


def test_a_new_manifest_is_derived_behind_the_old_one_and_takes_over_when_it_is_complete(
    start_host: StartHost, embedder: ScriptedEmbedder
) -> None:
    held = Held()
    messages = said("one", "two")
    old = ScriptedEmbedder(identity=Identity("test", "old", "1", 8))
    begun(old)
    embedder.script = [held]
    start_host(old, look=True)
    wait_until(held.reached.is_set, "the new one is being built")
    assert not Manifest.objects.filter(digest=embedder.identity.digest, state="active").exists()
    held.released.set()
    wait_until(lambda: answering().digest == embedder.identity.digest, "the new one takes over")
    assert derived(*messages)


def test_a_new_manifest_that_gave_up_everything_is_kept_from_answering_and_rests(
    start_host: StartHost, embedder: ScriptedEmbedder
) -> None:
    async def refuse(texts: Sequence[str]) -> list[ErrorCode]:
        return [ErrorCode.TEXT_NOT_EMBEDDABLE] * len(texts)

    old = ScriptedEmbedder(identity=Identity("test", "old", "1", 8))
    answers = active(old)
    messages = said("one", "two")
    asyncio.run(worker_for(old).drain())
    embedder.script = [refuse]
    host = start_host(old)
    wait_until(lambda: host._withheld is not None, "it was kept from answering")
    wait_until(lambda: not host._hurry, "and is not looked at again at once")
    assert answering() == answers
    assert derived(*messages)


def test_after_a_failure_it_rests_and_goes_on(
    start_host: StartHost, embedder: ScriptedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "REST_MIN_SECONDS", 0.05)
    host = start_host(look=True)
    answering()
    embedder.script = [ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)]
    (lost,) = said("one")
    wait_until(lambda: job_of(lost).state == "failed", "the job ends")
    (next_one,) = said("two")
    wait_until(lambda: derived(next_one), "it went on")
    del host


def test_a_host_that_breaks_begins_again(
    start_host: StartHost, embedder: ScriptedEmbedder
) -> None:
    made: list[int] = []

    def broken_twice() -> SemanticWorker:
        made.append(1)
        if len(made) < 3:
            raise RuntimeError
        return SemanticWorker(has(embedder))

    start_host(worker=broken_twice, look=True)
    answering()
    assert len(made) == 3


def test_a_database_that_is_away_is_waited_for(
    start_host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "REST_MIN_SECONDS", 0.02)
    failures = 3

    def away(whole: Callable[..., Any]) -> Callable[..., Any]:
        left = [failures]

        def call(*arguments: Any, **named: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise OperationalError
            return whole(*arguments, **named)

        return call

    monkeypatch.setattr(transitions, "claim_jobs", away(transitions.claim_jobs))
    monkeypatch.setattr(upkeep, "begin_configured", away(upkeep.begin_configured))
    monkeypatch.setattr(upkeep, "reconcile", away(upkeep.reconcile))
    start_host(look=True)
    answering()
    (message,) = said("one")
    wait_until(lambda: derived(message), "it went on")


def test_draining_finishes_the_batch_under_way_and_claims_no_other(
    start_host: StartHost, embedder: ScriptedEmbedder
) -> None:
    embedder.batch_items = 1
    host = start_host(look=True)
    answering()
    held = Held()
    embedder.script = [held]
    first, second = said("one", "two")
    assert held.reached.wait(60)
    draining = threading.Thread(target=host.drain, args=[time.monotonic() + 10])
    draining.start()
    held.released.set()
    draining.join(60)
    assert not draining.is_alive()
    assert job_of(first).state == "completed"
    assert (job_of(second).state, job_of(second).attempts) == ("queued", 0)


def test_a_batch_that_does_not_end_by_the_deadline_is_left_to_its_lease(
    start_host: StartHost, embedder: ScriptedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "LET_GO_SECONDS", 60.0)
    host = start_host(look=True)
    answering()
    held = Held()
    embedder.script = [held]
    said("one")
    assert held.reached.wait(60)
    host.drain(time.monotonic() + 0.2)
    assert not host._thread.is_alive()
    job = SemanticJob.objects.get()
    assert (job.state, job.attempts) == ("running", 1)


def test_draining_before_the_loop_turns_ends_it(start_host: StartHost) -> None:
    host = start_host()
    host.drain(time.monotonic() + 5)
    host.drain(time.monotonic() + 5)
    assert not host._thread.is_alive()


def test_a_hint_to_a_host_that_has_ended_is_lost_without_a_word(start_host: StartHost) -> None:
    host = start_host()
    host.drain(time.monotonic() + 5)
    host.wake()


def test_a_failed_message_is_tried_anew_after_its_cool_down_and_found(
    start_host: StartHost,
    embedder: ScriptedEmbedder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosting, "UPKEEP_SECONDS", 0.05)
    monkeypatch.setattr(hosting, "REST_MIN_SECONDS", 0.05)
    start_host(look=True)
    answering()
    embedder.script = [ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)]
    (message,) = said("one")
    wait_until(lambda: job_of(message).state == "failed", "the job ends")
    cool_down()
    wait_until(lambda: derived(message), "another job derives it")
    jobs = SemanticJob.objects.filter(message=message).order_by("pk")
    assert [(job.state, job.round) for job in jobs] == [("failed", 1), ("completed", 2)]
