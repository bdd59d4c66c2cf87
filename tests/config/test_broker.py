from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from kombu import Connection

from config import broker

MESSAGES = 500


@pytest.fixture
def connection(tmp_path: Path) -> Connection:
    broker.register()
    return Connection("holdfast://", transport_options={"folder": str(tmp_path / "broker")})


def _writers(folder: Path, names: tuple[str, ...]) -> list[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.config.broker_writer", folder, name, str(MESSAGES)]
        )
        for name in names
    ]


def _read_until(queue: Any, seen: list[Any], finished: Callable[[], bool]) -> None:
    """Read as fast as possible; once `finished`, until nothing is left."""
    while True:
        last_round = finished()
        try:
            while True:
                message = queue.get(block=False)
                message.ack()
                seen.append((message.payload["writer"], message.payload["number"]))
        except Empty:
            if last_round:
                return


def test_concurrent_writers_and_a_tight_reader_lose_and_tear_nothing(
    connection: Connection, tmp_path: Path
) -> None:
    writers = _writers(tmp_path / "broker", ("a", "b"))
    seen: list[Any] = []
    with connection:
        queue = connection.SimpleQueue("hints")
        _read_until(queue, seen, lambda: all(w.poll() is not None for w in writers))
        queue.close()
    assert [writer.wait() for writer in writers] == [0, 0]
    assert sorted(seen) == sorted((w, n) for w in ("a", "b") for n in range(MESSAGES))
    assert [number for writer, number in seen if writer == "a"] == list(range(MESSAGES))


def test_two_readers_share_the_messages_without_taking_one_twice(
    connection: Connection, tmp_path: Path
) -> None:
    (writer,) = _writers(tmp_path / "broker", ("a",))
    other = connection.clone()
    seen: list[Any] = []
    with connection, other:
        queues = [connection.SimpleQueue("hints"), other.SimpleQueue("hints")]
        while True:
            last_round = writer.poll() is not None
            before = len(seen)
            for queue in queues:
                try:
                    message = queue.get(block=False)
                except Empty:
                    continue
                message.ack()
                seen.append(message.payload["number"])
            if last_round and len(seen) == before:
                break
        for queue in queues:
            queue.close()
    assert sorted(seen) == list(range(MESSAGES))


def test_an_unreadable_message_is_dropped_and_the_next_one_arrives(
    connection: Connection, tmp_path: Path
) -> None:
    folder = tmp_path / "broker"
    with connection:
        queue = connection.SimpleQueue("hints", serializer="json")
        (folder / "00000000000000000001_torn.hints.msg").write_bytes(b'{"body": "')
        queue.put({"number": 1})
        message = queue.get(block=False)
        message.ack()
        assert message.payload == {"number": 1}
        queue.close()
    assert list(folder.iterdir()) == []


def test_a_partly_written_message_is_not_seen_and_is_cleared_at_the_next_start(
    connection: Connection, tmp_path: Path
) -> None:
    folder = tmp_path / "broker"
    with connection:
        queue = connection.SimpleQueue("hints")
        (folder / "00000000000000000001_half.partial").write_bytes(b'{"body": "')
        with pytest.raises(Empty):
            queue.get(block=False)
        queue.close()
    broker.remove_partials(folder)
    assert list(folder.iterdir()) == []


def test_queues_do_not_see_each_others_messages(connection: Connection) -> None:
    with connection:
        first = connection.SimpleQueue("first", serializer="json")
        second = connection.SimpleQueue("second", serializer="json")
        first.put({"number": 1})
        with pytest.raises(Empty):
            second.get(block=False)
        assert first.qsize() == 1
        assert first.clear() == 1
        for queue in (first, second):
            queue.close()
