"""What a test holds of a scripted service: scripts in, recorded requests out."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.simulators.replies import Reply, json_reply
from tests.simulators.server import CONTROL, Default, Service

ROOT: Final = Path(__file__).resolve().parents[2]
WAIT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request the service received, over which connection, and how far its answer got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    state: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Simulator:
    """A running scripted service. Waiting blocks: from a coroutine use `asyncio.to_thread`."""

    url: str
    control_url: str = ""

    @property
    def base_url(self) -> str:
        """The address a provider is configured with."""
        return f"{self.url}/v1"

    def script(self, *replies: Reply) -> None:
        """Answer the next requests so, in order; the default follows when they are used up."""
        self._call("POST", "script", json.dumps([reply.as_json() for reply in replies]))

    def release(self, gate: str) -> None:
        """Open `gate`, for whoever waits there and whoever comes."""
        self._call("POST", f"release/{gate}")

    def reset(self) -> None:
        """Forget scripts, requests and gates."""
        self._call("POST", "reset")

    def requests(self) -> list[Request]:
        """Return everything the service was asked, in order."""
        return [
            Request(**{**item, "body": base64.b64decode(item["body"])})
            for item in self._call("GET", "requests")
        ]

    @property
    def posts(self) -> int:
        """How many POSTs the service has received."""
        return sum(1 for request in self.requests() if request.method == "POST")

    def posts_per_key(self) -> Counter[str]:
        """Return how many POSTs came with each Idempotency-Key ("" is none)."""
        return Counter(
            request.headers.get("idempotency-key", "")
            for request in self.requests()
            if request.method == "POST"
        )

    def wait_for_posts(self, count: int, seconds: float = WAIT_SECONDS) -> None:
        """Return once `count` requests have come in."""
        self._wait("received", count, seconds)

    def wait_for_gate(self, gate: str, count: int = 1, seconds: float = WAIT_SECONDS) -> None:
        """Return once `count` replies stand at `gate`."""
        self._wait(f"held:{gate}", count, seconds)

    def wait_for_disconnects(self, count: int = 1, seconds: float = WAIT_SECONDS) -> None:
        """Return once `count` clients have left before the end of their answer."""
        self._wait("disconnected", count, seconds)

    def wait_until_finished(self, count: int = 1, seconds: float = WAIT_SECONDS) -> None:
        """Return once `count` replies have been sent whole."""
        self._wait("finished", count, seconds)

    def _wait(self, state: str, count: int, seconds: float) -> None:
        self._call("GET", f"wait?state={state}&count={count}&seconds={seconds}")

    def _call(self, method: str, verb: str, body: str = "") -> Any:
        address = urlsplit(self.control_url or self.url)
        connection = http.client.HTTPConnection(address.netloc, timeout=2 * WAIT_SECONDS)
        try:
            connection.request(method, CONTROL + verb, body)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != http.client.OK:
            states = [request.state for request in self.requests()]
            raise AssertionError(f"{verb}: {response.status}; requests are {states}")
        return answer


SINK: Final = json_reply({"ok": True}, repeat=True)


@contextmanager
def in_thread(
    default: Default = SINK, *, tls: ssl.SSLContext | None = None
) -> Iterator[Simulator]:
    """Run a service in a thread of this process.

    With `tls` the scripted port speaks TLS and the test talks to a second, plain port.
    """
    started: list[tuple[int, int]] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def run() -> None:
        service = Service(default)
        servers = [await service.start(tls=tls)]
        if tls is not None:
            servers.append(await service.start())
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        started.append((ports[0], ports[-1]))
        ready.set()
        await ending.wait()
        service.stop()
        for server in servers:
            server.close()
        await asyncio.gather(*service.clients, return_exceptions=True)

    def main() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(run())
        loop.close()

    thread = threading.Thread(target=main, name="simulator", daemon=True)
    thread.start()
    assert ready.wait(WAIT_SECONDS)
    port, control = started[0]
    scheme = "https" if tls is not None else "http"
    try:
        yield Simulator(f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{control}")
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(WAIT_SECONDS)


@contextmanager
def as_process(kind: str = "sink") -> Iterator[Simulator]:
    """Run a service as a process of its own, which no kill of another process touches.

    `kind` chooses what it answers beyond its script: see `tests.simulators.__main__`.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.simulators", kind],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Simulator(process.stdout.readline().strip())
    finally:
        # it ends with its standard input, so nothing is left when this process dies too
        process.stdin.close()
        process.stdout.close()
        process.wait(WAIT_SECONDS)
