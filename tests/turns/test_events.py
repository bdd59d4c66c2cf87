"""Hints: sent after commit, gathered, bounded, and never in their caller's way."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from channels.layers import get_channel_layer
from django.db import transaction
from pytest_django.fixtures import Settings

from config.channel_layer import ENVELOPE_MAX_BYTES
from recovery.executor import in_thread
from turns import events

pytestmark = pytest.mark.django_db(transaction=True)
# Longer than anything here takes: only turns a hang into a failure.
SECONDS = 10.0


class RecordingLayer:
    """A channel layer that keeps what it is given, once its service lets it."""

    sent: list[list[int]] = []
    open = threading.Event()
    failing = False

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        assert (group, message["type"]) == ("live", "hint")
        await asyncio.to_thread(self.open.wait)
        if RecordingLayer.failing:
            raise ConnectionError
        self.sent.append(message["c"])


@pytest.fixture
def sent(settings: Settings) -> Iterator[list[list[int]]]:
    """The envelopes that left, oldest first."""
    events.stop(SECONDS)  # with its connection: the layer is replaced
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": f"{__name__}.RecordingLayer"}}
    RecordingLayer.sent.clear()
    RecordingLayer.failing = False
    RecordingLayer.open.set()
    yield RecordingLayer.sent
    RecordingLayer.open.set()
    events.stop(SECONDS)


def test_one_conversation_announced_many_times_is_one_hint(sent: list[list[int]]) -> None:
    RecordingLayer.open.clear()
    events.announce(1)  # under way, and held up
    for _ in range(1_000):
        events.announce_many([2, 3])
    RecordingLayer.open.set()
    assert events.flush(SECONDS)
    assert sum(envelope.count(2) for envelope in sent) <= 2
    assert {i for envelope in sent for i in envelope} == {1, 2, 3}
    assert len(sent) <= 3


def test_a_hint_leaves_after_the_commit_and_not_at_all_after_a_rollback(
    sent: list[list[int]],
) -> None:
    """failure H49"""
    with transaction.atomic():
        events.announce_on_commit(5)
        assert events.flush(SECONDS)
        assert sent == []
    assert events.flush(SECONDS)
    assert sent == [[5]]

    with transaction.atomic():
        events.announce_on_commit(6)
        transaction.set_rollback(True)
    assert events.flush(SECONDS)
    assert sent == [[5]]


def test_outside_a_transaction_what_was_written_is_committed_and_its_hint_leaves(
    sent: list[list[int]],
) -> None:
    events.announce_on_commit(5)
    assert events.flush(SECONDS)
    assert sent == [[5]]


def test_a_hint_of_a_savepoint_that_is_rolled_back_never_leaves(sent: list[list[int]]) -> None:
    with transaction.atomic():
        events.announce_on_commit(5)
        with transaction.atomic():
            events.announce_on_commit(6)
            transaction.set_rollback(True)
    assert events.flush(SECONDS)
    assert sent == [[5]]


def test_the_first_hint_after_a_rest_leaves_at_once_and_the_next_is_gathered(
    sent: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "GATHER_SECONDS", 10 * SECONDS)
    events.announce(1)
    assert events.flush(SECONDS)
    events.announce(2)
    assert not events.flush(0.1)
    assert sent == [[1]]
    events.stop(0.0)  # or the end would wait for it


def test_rounds_without_a_pause_between_them_keep_a_longer_distance(
    sent: list[list[int]],
) -> None:
    began = time.monotonic()
    while len(sent) < 6:
        events.announce(1)
        events.flush(0.001)
        assert time.monotonic() < began + SECONDS
    least = events.GATHER_SECONDS + 4 * events.STORM_GATHER_SECONDS
    assert time.monotonic() - began >= least


def test_a_dead_layer_costs_its_callers_nothing(sent: list[list[int]]) -> None:
    RecordingLayer.failing = True
    events.announce(7)
    assert events.flush(SECONDS)
    assert sent == []
    RecordingLayer.failing = False
    events.announce(8)
    assert events.flush(SECONDS)
    assert sent == [[8]]


def test_a_hanging_layer_blocks_nobody_and_what_waits_is_bounded(
    sent: list[list[int]],
) -> None:
    RecordingLayer.open.clear()
    events.announce_many(range(1, 3 * events.PENDING_MAX_ITEMS))
    assert not events.flush(0.05)
    RecordingLayer.open.set()
    assert events.flush(SECONDS)
    # one round may have left before the rest came
    first = events.ENVELOPES_PER_ROUND * events.ENVELOPE_MAX_BYTES
    assert sum(map(len, sent)) <= events.PENDING_MAX_ITEMS + first


@pytest.mark.parametrize("first", [1, 10**17])
def test_every_envelope_fits_into_one_notification(first: int) -> None:
    """failure H50: ids only, measured in bytes, whatever their number."""
    ids = list(range(first, first + 10_000))
    groups = list(events.envelopes(ids))
    assert [i for group in groups for i in group] == ids
    for group in groups:
        text = str({"s": "x" * 32, "n": 10**9, "g": "live", "m": {"type": "hint", "c": group}})
        assert len(text.encode()) <= ENVELOPE_MAX_BYTES
    assert len(groups) < len(ids) / 300


async def test_hints_reach_another_event_loop_through_the_real_layer() -> None:
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(events.GROUP, channel)
    await in_thread(events.announce, 11)
    async with asyncio.timeout(SECONDS):
        assert await layer.receive(channel) == {"type": "hint", "c": [11]}
    await layer.close()


def test_hints_resume_when_a_process_out_of_descriptors_has_some_again(
    sent: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()
    make = asyncio.new_event_loop

    def out_of_descriptors() -> asyncio.AbstractEventLoop:
        if not refused.is_set():
            refused.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return make()

    monkeypatch.setattr(asyncio.events, "new_event_loop", out_of_descriptors)
    monkeypatch.setattr(events, "RESTART_SECONDS", 0.01)
    events.announce(1)
    assert refused.wait(SECONDS)
    events.announce(2)
    assert events.flush(SECONDS)
    assert sorted(one for envelope in sent for one in envelope) == [1, 2]


def test_a_forked_process_sends_its_own_hints(sent: list[list[int]]) -> None:
    events.announce(1)
    assert events.flush(SECONDS)
    child = os.fork()
    if child == 0:
        events.announce(2)
        os._exit(0 if events.flush(SECONDS) and sent == [[1], [2]] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_ends_at_once_still_sends_its_hints_and_ends_quietly(
    process_environment: dict[str, str], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("LISTEN holdfast_hints")
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                "import django; django.setup()\nfrom turns import events; events.announce(12)",
            ],
            env=process_environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        heard = next(listener.notifies(timeout=SECONDS, stop_after=1))
        assert '"c":[12]' in heard.payload


def test_a_listener_hears_what_is_committed_here_and_nothing_that_is_rolled_back() -> None:
    heard: list[int] = []

    def listener() -> None:
        heard.append(1)

    events.listen(listener)
    events.listen(listener)  # once is enough
    try:
        with transaction.atomic():
            events.announce_on_commit(1)
            assert heard == []
        assert heard == [1]
        with transaction.atomic():
            events.announce_on_commit(2)
            transaction.set_rollback(True)
        assert heard == [1]
    finally:
        events.stop_listening(listener)
    events.announce(3)
    assert heard == [1]


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_listener_that_fails_fails_no_commit_and_no_other_listener(
    in_transaction: bool,
) -> None:
    heard: list[int] = []

    def fails() -> None:
        raise LookupError

    def listener() -> None:
        heard.append(1)

    for each in (fails, listener):
        events.listen(each)
    try:
        with transaction.atomic() if in_transaction else contextlib.nullcontext():
            events.announce_on_commit(1)
        assert heard == [1]
    finally:
        for each in (fails, listener):
            events.stop_listening(each)
