"""A Celery broker made of files, for one machine: what the embedded stack uses for its hints.

kombu's own filesystem transport writes a message under its final name, so a reader can take it
half written, and a torn message ends the worker. Here a message is written aside and appears in
one step; a reader takes it in one step; whatever does not parse is dropped. Losing a hint costs
a sweep, no more.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from pathlib import Path
from queue import Empty
from typing import Any, Final

import structlog
from kombu.transport import TRANSPORT_ALIASES, virtual

log = structlog.get_logger(__name__)

ALIAS: Final = "holdfast"
MESSAGE: Final = ".msg"


class Channel(virtual.Channel):
    """Messages of all queues in one folder, named `<time>_<unique>.<queue>.msg`.

    Every queue hangs on the direct exchange of its own name, which is how Celery declares its
    default queue; so there are no bindings to store, and none that another process could miss.
    """

    supports_fanout = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        client = self.connection.client
        self._folder = Path(client.transport_options["folder"])  # type: ignore[union-attr,index]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listed: dict[str, deque[str]] = {}

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return the one binding of `exchange`: its name is the routing key and the queue."""
        return [(exchange, "", exchange)]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        del pattern
        if not exchange == routing_key == queue:
            raise NotImplementedError(
                "the file broker knows direct exchanges named like their queue"
            )

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        name = f"{time.time_ns():020d}_{uuid.uuid4().hex}"
        partial = self._folder / f"{name}.partial"
        partial.write_text(json.dumps(message))
        partial.replace(self._folder / f"{name}.{queue}{MESSAGE}")

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        del timeout
        while True:
            payload = self._take(self._next_name(queue))
            if payload is not None:
                return payload

    def _next_name(self, queue: str) -> str:
        listed = self._listed.setdefault(queue, deque())
        if not listed:
            listed.extend(self._names(queue))
        if not listed:
            raise Empty
        return listed.popleft()

    def _take(self, name: str) -> dict[str, Any] | None:
        """Return the message, now ours alone; None when it is torn or another took it."""
        taken = self._folder / f"{name}.taken"
        try:
            (self._folder / name).rename(taken)
            payload = json.loads(taken.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            log.warning("broker.message_dropped", reason="unreadable")
            payload = None
        taken.unlink(missing_ok=True)
        return payload if isinstance(payload, dict) else None

    def _names(self, queue: str) -> list[str]:
        ending = f"{queue}{MESSAGE}"
        return sorted(
            path.name
            for path in self._folder.iterdir()
            if path.name.partition(".")[2] == ending
        )

    def _size(self, queue: str) -> int:
        return len(self._names(queue))

    def _purge(self, queue: str) -> int:
        names = self._names(queue)
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
        return len(names)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        del queue
        return True


class Transport(virtual.Transport):
    """The transport `holdfast://`; its option `folder` names the directory."""

    Channel = Channel
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct"])
    )
    # What all channels of a process know about queues; the files are the truth.
    global_state = virtual.BrokerState()
    default_port = 0
    driver_type = "holdfast"
    driver_name = "holdfast"
    polling_interval = 0.1

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state = self.global_state

    def driver_version(self) -> str:
        """Return the version of the file format."""
        return "1"


def register() -> None:
    """Teach kombu the name `holdfast://`."""
    TRANSPORT_ALIASES[ALIAS] = "config.broker:Transport"


def remove_partials(folder: Path) -> None:
    """Remove what killed writers and readers left. Call it while no other process runs."""
    for pattern in ("*.partial", "*.taken"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
