"""The scripted services themselves: as real as the services they stand for."""

from __future__ import annotations

import http.client
from typing import get_args
from urllib.parse import urlsplit

import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

from tests.simulators import chat_wire, responses_wire
from tests.simulators.client import Simulator, as_process, in_thread
from tests.simulators.replies import json_reply
from turns.providers.sse import EventDecoder


def post(service: Simulator, key: str = "", body: str = "{}") -> int:
    connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=60)
    try:
        connection.request("POST", "/hook", body, {"Idempotency-Key": key} if key else {})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_responses_frames_are_what_the_vendors_own_client_expects() -> None:
    union, _ = get_args(ResponseStreamEvent)
    by_type = {
        get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(union)
    }
    stream = responses_wire.Stream()
    frames = [*stream.opening(), *stream.message("a", "b"), *stream.call("calc", "{}")]
    frames += [stream.terminal(), stream.terminal("incomplete"), stream.terminal("failed")]
    events = list(EventDecoder().feed(b"".join(frames)))
    for event in events:
        by_type[event.name].model_validate_json(event.data)
    assert len(events) == len(frames)


def test_chat_frames_are_what_the_vendors_own_client_expects() -> None:
    frames = [chat_wire.OPENING, chat_wire.text("a"), *chat_wire.call(0, "c", "calc", "{}")]
    frames += chat_wire.ending("tool_calls")
    events = list(EventDecoder().feed(b"".join(frames)))
    for event in events[:-1]:
        ChatCompletionChunk.model_validate_json(event.data)
    assert events[-1].data == "[DONE]"


def test_a_sink_in_a_process_counts_posts_per_key() -> None:
    with as_process() as sink:
        assert [post(sink, "a"), post(sink, "b"), post(sink, "a"), post(sink)] == [200] * 4
        assert sink.posts_per_key() == {"a": 2, "b": 1, "": 1}
        assert sink.posts == 4
        sink.script(json_reply({}, status=503))
        assert [post(sink), post(sink)] == [503, 200]
        sink.reset()
        assert sink.posts == 0


def test_embeddings_are_what_the_vendors_own_client_expects() -> None:
    with as_process("embeddings") as service:
        client = OpenAI(base_url=service.base_url, api_key="key", max_retries=0)
        as_numbers = client.embeddings.create(
            model="m", input=["one", "two"], encoding_format="float"
        )
        # what the client asks for by itself is base64
        as_base64 = client.embeddings.create(model="m", input=["one", "two"])
        with pytest.raises(BadRequestError):
            client.embeddings.create(model="m", input=["one", ""])
        client.close()
    for numbers, packed in zip(as_numbers.data, as_base64.data, strict=True):
        assert numbers.index == packed.index
        assert numbers.embedding == pytest.approx(packed.embedding, abs=1e-6)


@pytest.mark.parametrize(("kind", "wire"), [("responses", "completed"), ("chat", "[DONE]")])
def test_a_provider_in_a_process_answers_without_a_script(kind: str, wire: str) -> None:
    with as_process(kind) as service:
        connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=60)
        connection.request("POST", "/v1/anything", "{}")
        body = connection.getresponse().read()
        connection.close()
        assert b"there" in body
        assert wire.encode() in body
        service.wait_until_finished(1)


def test_replies_are_chosen_by_what_the_request_says() -> None:
    with in_thread() as service:
        service.script(
            json_reply({}, status=503, match="alice", repeat=True),
            json_reply({}, status=401, match="bob"),
        )
        statuses = [post(service, body=f'"{who}"') for who in ("bob", "alice", "alice", "bob")]
        assert statuses == [401, 503, 503, 200]
