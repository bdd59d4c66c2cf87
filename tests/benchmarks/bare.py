"""The least a streaming client can do: aiohttp, reading what comes and forgetting it.

python -m tests.benchmarks.bare URL STREAMS, with the connections of the product's client.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
import uvloop

from tests.benchmarks.model import say


async def main(url: str, streams: int) -> None:
    """Read so many streams to their ends."""
    connector = aiohttp.TCPConnector(limit=streams + 100)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_read=120)
    ) as session:
        counts = await asyncio.gather(*(_read(session, url, n) for n in range(streams)))
    say("read", chunks=sum(counts))


async def _read(session: aiohttp.ClientSession, url: str, number: int) -> int:
    content = [{"type": "input_text", "text": f"question {number}"}]
    body = {"input": [{"type": "message", "role": "user", "content": content}], "stream": True}
    count = 0
    async with session.post(url, data=json.dumps(body).encode()) as response:
        async for _ in response.content.iter_any():
            count += 1
    return count


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
