"""The adapters against a server that is not ours: llama.cpp with the local model.

What a scripted service says we made up ourselves; this one shows that the same adapters
understand a real server and what its death looks like.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import pytest

from config.embedded import children, model_server
from tests.simulators.client import ROOT
from tests.turns.providers.hearing import hear
from turns.providers.chat import ChatProvider
from turns.providers.responses import ResponsesProvider
from turns.providers.types import (
    AssistantText,
    FunctionCall,
    FunctionResult,
    TextDelta,
    TextProvider,
    TextRequest,
    UserText,
)

Adapter = type[ResponsesProvider] | type[ChatProvider]

SHORT = TextRequest(
    model=model_server.MODEL,
    instructions="Answer in one short sentence.",
    items=(UserText("What is the capital of France?"),),
    max_output_tokens=48,
)
LONG = replace(
    SHORT, items=(UserText("Tell a very long story about a ship."),), max_output_tokens=400
)


@dataclass(frozen=True, slots=True)
class ModelServer:
    process: subprocess.Popen[bytes]
    base_url: str
    key: str

    @asynccontextmanager
    async def provider(
        self, adapter_class: Adapter, key: str | None = None
    ) -> AsyncIterator[TextProvider]:
        adapter = adapter_class(base_url=self.base_url, api_key=key or self.key)
        try:
            yield adapter
        finally:
            await adapter.aclose()


@contextmanager
def running() -> Iterator[ModelServer]:
    """Start the model server and wait until it says that it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = secrets.token_urlsafe(16)
    reading, writing = os.pipe()
    process = children.start(
        [sys.executable, "-m", "config.embedded.model_server", str(port)],
        log=None,
        environment={**os.environ, model_server.KEY: key},
        cwd=ROOT,
        ready=writing,
    )
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as ready:
            assert ready.read(1) == b"1"
        yield ModelServer(process, f"http://127.0.0.1:{port}/v1", key)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=[ResponsesProvider, ChatProvider])
def adapter(request: pytest.FixtureRequest) -> Adapter:
    chosen: Adapter = request.param
    return chosen


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with running() as started:
        yield started


async def test_a_real_answer_arrives_in_pieces_and_whole(
    server: ModelServer, adapter: Adapter
) -> None:
    async with server.provider(adapter) as provider:
        heard = await hear(provider, SHORT)
    completed = heard.completed
    assert len(heard.started) == 1
    assert len(heard.deltas) > 1
    assert heard.text == completed.text
    assert completed.response_id == heard.started[0]
    assert completed.usage is not None
    assert completed.usage["input_tokens"] > 0
    assert (completed.calls, completed.anomalies) == ((), 0)


async def test_a_history_with_calls_is_accepted(server: ModelServer, adapter: Adapter) -> None:
    request = replace(
        SHORT,
        items=(
            UserText("What is 2+2?"),
            FunctionCall("call_1", "calc", '{"e":"2+2"}'),
            FunctionCall("call_2", "calc", '{"e":"4"}'),
            FunctionResult("call_1", "4"),
            FunctionResult("call_2", "4"),
            AssistantText("4."),
            UserText("And 3+3?"),
        ),
    )
    async with server.provider(adapter) as provider:
        heard = await hear(provider, request)
    assert heard.text == heard.completed.text != ""


async def test_an_answer_cut_at_its_limit_is_incomplete(
    server: ModelServer, adapter: Adapter
) -> None:
    async with server.provider(adapter) as provider:
        heard = await hear(provider, replace(LONG, max_output_tokens=8))
    assert heard.completed.incomplete
    assert heard.completed.text != ""


async def test_a_prompt_that_does_not_fit_is_named_as_such(
    server: ModelServer, adapter: Adapter
) -> None:
    prompt = UserText("word " * (2 * model_server.CONTEXT_TOKENS))
    async with server.provider(adapter) as provider:
        heard = await hear(provider, replace(SHORT, items=(prompt,)))
    assert heard.code == "provider_context_exceeded"


async def test_a_wrong_key_is_named_as_such(server: ModelServer, adapter: Adapter) -> None:
    async with server.provider(adapter, "wrong") as provider:
        assert (await hear(provider, SHORT)).code == "provider_auth"


async def test_leaving_an_answer_frees_the_server_for_the_next(
    server: ModelServer, adapter: Adapter
) -> None:
    """As many answers are left as the server can write at once; the next is served."""
    async with server.provider(adapter) as provider:
        for _ in range(model_server.PARALLEL_ANSWERS):
            async with aclosing(provider.respond(LONG)) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        break
        async with asyncio.timeout(20):
            heard = await hear(provider, SHORT)
    assert heard.completed.text != ""


async def test_a_server_killed_in_mid_stream_leaves_a_truncated_answer(
    adapter: Adapter,
) -> None:
    with running() as server:

        def kill(text: str) -> None:
            if text:
                server.process.kill()

        async with server.provider(adapter) as provider:
            heard = await hear(provider, LONG, on_text=kill)
            server.process.wait()
            afterwards = await hear(provider, SHORT)
    assert heard.code == "truncated_stream"
    assert heard.text != ""
    assert heard.failed.response_id == heard.started[0]
    assert heard.failed.usage is None
    assert afterwards.code == "provider_unreachable"
