"""A scripted service as a process: prints its address and ends with its standard input.

python -m tests.simulators responses|chat|embeddings|sink
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from tests.simulators import chat_wire, embeddings_wire, responses_wire
from tests.simulators.client import SINK
from tests.simulators.server import Default, Service

# what is answered when the script is used up
DEFAULTS: Final[dict[str, Default]] = {
    "responses": responses_wire.answer("Hello", " there", "."),
    "chat": chat_wire.answer("Hello", " there", "."),
    "embeddings": embeddings_wire.computed,
    "sink": SINK,
}


async def main(kind: str) -> None:
    """Serve until the starter is gone."""
    service = Service(DEFAULTS[kind])
    server = await service.start()
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    service.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
