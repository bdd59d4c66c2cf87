"""Sends numbered hints from a process of its own: FOLDER NAME COUNT."""

from __future__ import annotations

import sys

from kombu import Connection

from config import broker


def main(folder: str, name: str, count: int) -> None:
    """Send `count` messages that carry `name` and their number."""
    broker.register()
    with Connection("holdfast://", transport_options={"folder": folder}) as connection:
        queue = connection.SimpleQueue("hints", serializer="json")
        for number in range(count):
            queue.put({"writer": name, "number": number, "padding": "x" * 2_000})
        queue.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
