"""Whatever the other side does, a batch ends in time, with our code and nothing private."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semantic import bounds
from semantic.embedders import answers
from semantic.embedders.embedder import Identity
from semantic.embedders.openai import OpenAIEmbedder
from tests.semantic.embedders.asking import (
    CANARY,
    IMPATIENT_SECONDS,
    PATIENT_SECONDS,
    ask,
    embedder_of,
    require_private,
    sent,
)
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import ROOT, WAIT_SECONDS, Simulator
from tests.simulators.replies import Reply, close, drip, error_reply, hold, raw, reset, send

BODY = b'{"data":[{"index":0,"embedding":"'
MUTE = b" " + CANARY.encode()
STATED = {
    "provider_timeout",
    "provider_unavailable",
    "provider_protocol",
    "truncated_stream",
}


@contextmanager
def at_address(base_url: str) -> Iterator[OpenAIEmbedder]:
    yield OpenAIEmbedder(
        Identity("openai", "scripted-embeddings", "", 8),
        timeout_seconds=IMPATIENT_SECONDS,
        base_url=base_url,
    )


@pytest.mark.parametrize(
    ("reply", "codes"),
    [
        (Reply((), hold_head="never"), {"provider_timeout"}),
        (Reply([hold("never")], headers={}), {"provider_timeout"}),
        (Reply([send(BODY), hold("never")], headers={}), {"provider_timeout"}),
        (Reply([drip(BODY * 1_000, seconds=0.01)], headers={}), {"provider_timeout"}),
        (Reply([drip(b" " * 5_000, seconds=0.01)], status=503, headers={}), STATED),
        (Reply([send(MUTE), hold("never")], status=429, headers={}), STATED),
    ],
    ids=["no head", "no body", "half a body", "a slow body", "a slow error", "half an error"],
)
async def test_a_hung_service_ends_by_the_clock_with_one_request(
    service: Simulator,
    impatient: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    reply: Reply,
    codes: set[str],
) -> None:
    service.script(reply)
    # the slow ones take longer than this to say it all
    async with asyncio.timeout(WAIT_SECONDS):
        asked = await ask(impatient, ["one", "two"])
    assert asked.code in codes
    assert service.posts == 1
    require_private(asked, capsys)
    await require_undisturbed(impatient)


@pytest.mark.parametrize(
    ("reply", "codes"),
    [
        (Reply([close()], framing="raw"), {"provider_unavailable"}),
        (Reply([reset()], framing="raw"), {"provider_unavailable"}),
        (Reply([send(BODY), reset()], headers={}), {"truncated_stream"}),
        (Reply([send(BODY), close()], headers={}), {"truncated_stream"}),
        (Reply([send(BODY), raw(b"oh no\r\n\r\n"), hold("never")], headers={}), STATED),
        (
            Reply([raw(b"SSH-2.0-OpenSSH\r\n\r\n"), close()], framing="raw"),
            {"provider_protocol"},
        ),
        (Reply([raw(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000)], framing="raw"), STATED),
    ],
    ids=[
        "closed", "reset", "reset in the body", "closed in the body", "a broken chunk",
        "not HTTP", "a huge head",
    ],
)  # fmt: skip
async def test_a_broken_service_ends_before_the_clock_with_one_request(
    service: Simulator,
    embedder: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    reply: Reply,
    codes: set[str],
) -> None:
    service.script(reply)
    async with asyncio.timeout(WAIT_SECONDS):
        asked = await ask(embedder, ["one", "two"])
    assert asked.code in codes
    assert service.posts == 1
    require_private(asked, capsys)
    await require_undisturbed(embedder)


async def require_undisturbed(embedder: OpenAIEmbedder) -> None:
    """Fail unless a later batch goes through, whatever became of the connection."""
    embedder._timeout_seconds = PATIENT_SECONDS
    assert (await ask(embedder, ["one"])).codes == [""]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(
    service: Simulator, embedder: OpenAIEmbedder, status: int
) -> None:
    """It would carry the key and the texts to wherever it points."""
    location = f"{service.url}/elsewhere?key=canary-url"
    service.script(Reply((), status=status, headers={"Location": location}, framing="length"))
    asked = await ask(embedder, ["one"])
    assert (asked.code, asked.failure and asked.failure.http_status) == (
        "provider_protocol",
        status,
    )
    assert [request.path for request in service.requests()] == ["/v1/embeddings"]


@pytest.mark.parametrize(
    "address", ["http://", "nonsense", "ftp://127.0.0.1/v1", "http://a b/", ""]
)
async def test_an_address_that_is_none_is_unreachable(address: str) -> None:
    with at_address(address) as embedder:
        assert (await ask(embedder, ["one"])).code == "provider_unreachable"
        await embedder.aclose()


async def test_a_refused_connection_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with at_address(f"http://127.0.0.1:{taken.getsockname()[1]}/v1") as embedder:
            assert (await ask(embedder, ["one"])).code == "provider_unreachable"
            await embedder.aclose()


async def test_a_connection_nobody_accepts_ends_in_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            async with asyncio.timeout(WAIT_SECONDS):
                with at_address(f"http://127.0.0.1:{port}/v1") as embedder:
                    assert (await ask(embedder, ["one"])).code == "provider_timeout"
                    await embedder.aclose()
        finally:
            for client in waiting:
                client.close()


def test_the_clock_of_an_embedder_ends_before_its_callers_and_that_before_the_lease() -> None:
    """Failure H13."""
    default = OpenAIEmbedder(Identity("openai", "m", "", 8), base_url="http://127.0.0.1:9")
    assert default._timeout_seconds == bounds.EMBEDDER_TIMEOUT_SECONDS
    assert (
        bounds.EMBEDDER_TIMEOUT_SECONDS < bounds.PROVIDER_TIMEOUT_SECONDS < bounds.LEASE_SECONDS
    )


async def test_a_cancelled_caller_leaves_no_request_behind(service: Simulator) -> None:
    embedder = embedder_of(service)
    service.script(Reply((), hold_head="answer"))
    task = asyncio.ensure_future(ask(embedder, ["one"]))
    await asyncio.to_thread(service.wait_for_gate, "answer")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(service.wait_for_disconnects)
    assert (await ask(embedder, ["one"])).codes == [""]
    await embedder.aclose()


async def test_batches_one_after_the_other_share_a_connection(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    for text in ("one", "two", "three"):
        await ask(embedder, [text])
    assert len({request.connection for request in service.requests()}) == 1


async def test_after_closing_an_embedder_can_be_used_again(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    for _ in range(2):
        assert (await ask(embedder, ["one"])).codes == [""]
        await embedder.aclose()
        await embedder.aclose()


def test_many_threads_and_loops_use_one_embedder(service: Simulator) -> None:
    """Loops that end leave nothing open behind them."""
    embedder = embedder_of(service)
    threads, batches = 12, 4
    together = threading.Barrier(threads)
    wrong: list[object] = []

    async def ask_all(number: int) -> None:
        asked = await asyncio.gather(
            *(ask(embedder, [f"{number} {at} a", f"{number} {at} b"]) for at in range(batches))
        )
        for at, each in enumerate(asked):
            for letter, vector in zip("ab", each.outcomes, strict=True):
                expected = wire.unit_vector_of(f"{number} {at} {letter}")
                if not np.allclose(vector, expected, atol=1e-6):
                    wrong.append((number, at, letter))

    def work(number: int) -> None:
        together.wait()
        try:
            asyncio.run(ask_all(number))
        except BaseException as error:  # noqa: BLE001 - the test's own thread
            wrong.append(error)

    running = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    asyncio.run(embedder.aclose())
    gc.collect()
    assert wrong == []
    assert service.posts == threads * batches


async def test_a_large_answer_is_read_away_from_the_callers_loop(
    service: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = embedder_of(service)
    threads: set[str] = set()
    read = answers.vectors

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread().name)
        return read(*args, **kwargs)

    monkeypatch.setattr(answers, "vectors", noted)
    await ask(embedder, ["one"])
    await embedder.aclose()
    assert threads == {"embeddings"}


def test_how_long_vectors_are_is_learnt_from_one_request(service: Simulator) -> None:
    embedder = embedder_of(service, dimensions=bounds.DIMENSIONS_MAX)
    assert embedder.learn_dimensions() == wire.DIMENSIONS
    service.script(wire.answer([1.0] * 4_096))
    assert embedder.learn_dimensions() == 4_096
    assert sent(service) == [["dimensions"]] * 2


def test_a_service_that_does_not_say_how_long_vectors_are(service: Simulator) -> None:
    embedder = embedder_of(service)
    for reply, code in (
        (error_reply(401, message=CANARY), "provider_auth"),
        (wire.answer([0.0] * 8), "provider_protocol"),
        (wire.answer([]), "provider_protocol"),
        (Reply((), hold_head="never"), "provider_timeout"),
    ):
        if code == "provider_timeout":
            embedder._timeout_seconds = IMPATIENT_SECONDS
        service.script(reply)
        with pytest.raises(Exception, match=code) as raised:
            embedder.learn_dimensions()
        assert raised.value.__context__ is None


FORGETFUL = """
import asyncio, sys
import django
django.setup()
from semantic.embedders.embedder import Identity, Purpose
from semantic.embedders.openai import OpenAIEmbedder

embedder = OpenAIEmbedder(Identity("openai", "m", "", 8), base_url=sys.argv[1])
asyncio.run(embedder.embed(["one"], Purpose.QUERY))
"""


def test_a_process_may_end_without_closing_its_embedders(
    service: Simulator, tmp_path: Path
) -> None:
    """A worker that is told to stop has nothing to complain about."""
    ended = subprocess.run(
        [sys.executable, "-W", "default", "-c", FORGETFUL, service.base_url],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert service.posts == 1
    assert ended.stderr == ""
