"""One job under its server: it reports, or its end says exactly why it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests.factories import WorkJobFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, close, error_reply, hold, reset
from tests.simulators.responses_wire import Stream, answer, frames_reply, stalled, tool_calls
from tests.support.job_serving import (
    Counter,
    counting,
    ended,
    offered,
    provider_steps_of,
    serving_jobs,
    steps_of,
    told,
)
from tests.support.jobs import place_for, posting
from tests.support.scripted import *  # noqa: F403
from tests.support.serving import serving
from turns.models import Note
from turns.tools.registry import Registry
from work import bounds
from work.models import JobReport, JobReportMessage, WorkJob
from work.requests import from_settings
from work.tools import JOB_TOOL_NAMES
from work.transitions import request_cancel

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_job_with_two_calls_reports_into_its_conversation(
    model: Simulator, sink: Simulator, settings: Settings
) -> None:
    """behaviour O1"""
    settings.LLM_MODEL = "pinned"
    model.script(
        posting(sink, 1), posting(sink, 2), answer("Both are posted.", response_id="resp_3")
    )
    conversation = await in_thread(place_for, sink)
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask("Post twice.", conversation))
    assert await ended(job) == ("completed", "")
    assert (job.model, job.attempts) == ("pinned", 1)
    requests = await provider_steps_of(job)
    assert [step.response_id for step in requests] == ["resp_1", "resp_2", "resp_3"]
    assert {step.model for step in requests} == {"pinned"}
    assert len({step.request_digest for step in requests}) == 3
    assert all(step.usage and step.usage["total_tokens"] == 14 for step in requests)
    calls = await steps_of(job)
    assert [(c.state, c.call_id, c.sequence) for c in calls] == [
        ("succeeded", "call_1", 1),
        ("succeeded", "call_2", 2),
    ]
    assert sink.posts_per_key() == {str(call.invocation_key): 1 for call in calls}

    def linked() -> None:
        report = JobReport.objects.get(job=job)
        link = JobReportMessage.objects.get(report=report)
        message = link.message
        assert (report.kind, message.conversation_id) == ("result", job.conversation_id)
        assert report.text == message.text == "Both are posted."
        assert report.digest == message.digest

    await in_thread(linked)

    # a later turn of the conversation knows the report
    model.script(answer("It was posted twice."))
    async with serving(model.base_url) as turns:
        turn = await turns.serve(await turns.ask("What came of it?", conversation))
    assert turn.state == "completed"
    said = [item["content"] for item in model.requests()[-1].json["input"]]
    assert "Both are posted." in str(said)


async def test_a_job_without_calls_reports_what_the_model_says(model: Simulator) -> None:
    """behaviour O2"""
    model.script(answer("It is ", "as it was."))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask("Look.", context="It was well."))
    assert await ended(job) == ("completed", "")
    assert await told(job) == "It is as it was."
    assert await steps_of(job) == []
    (request,) = model.requests()
    (prompt,) = request.json["input"]
    assert prompt["role"] == "user"
    assert "Look." in str(prompt)
    assert "It was well." in str(prompt)


async def test_the_next_request_tells_what_was_said_and_done(model: Simulator) -> None:
    counter = Counter()
    model.script(counting(1, text="Let me count. "), answer("One.", response_id="resp_2"))
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.serve(await runtime.ask("Count."))
    assert await ended(job) == ("completed", "")
    items = model.requests()[1].json["input"]
    assert [item["type"] for item in items] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]
    assert items[3]["output"] == "counted"
    (invocation,) = counter.calls
    owner_id = job.person_id
    assert (invocation.owner_id, invocation.conversation_id) == (owner_id, job.conversation_id)
    assert invocation.before_message_id == job.before_message_id


@pytest.mark.parametrize("blank", [" ", "\u200b"])
async def test_a_blank_last_response_reports_what_was_said_before(
    model: Simulator, blank: str
) -> None:
    model.script(counting(1, text="I counted once. "), answer(blank, response_id="resp_2"))
    async with serving_jobs(model.base_url, Counter().tool) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("completed", "")
    assert await told(job) == "I counted once."


async def test_a_report_past_its_bound_is_cut_with_a_mark(model: Simulator) -> None:
    model.script(answer("word " * 2_000))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("completed", "")
    text = await told(job)
    assert len(text.encode()) <= 8_000
    assert "[cut: the report was" in text


async def test_a_note_saved_by_a_job_is_a_note_of_its_person(model: Simulator) -> None:
    """The tools of a turn work in a job: their effect commits while the job's call runs."""
    model.script(
        tool_calls(("call_1", "note_save", '{"text": "Likes tea."}')),
        answer("Noted.", response_id="resp_2"),
    )
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("completed", "")
    (call,) = await steps_of(job)
    assert call.state == "succeeded"
    note = await in_thread(Note.objects.get)
    assert (note.owner_id, note.invocation_key) == (job.person_id, call.invocation_key)


@pytest.mark.parametrize("name", sorted(JOB_TOOL_NAMES))
async def test_a_job_can_neither_start_nor_steer_jobs(model: Simulator, name: str) -> None:
    """behaviours Q2, Q4"""
    arguments = json.dumps({"kind": "deep_work", "goal": "More.", "job_id": "1"})
    model.script(
        tool_calls(("call_1", name, arguments)), answer("I may not.", response_id="resp_2")
    )
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("completed", "")
    (call,) = await steps_of(job)
    assert (call.state, call.error_code) == ("refused", "work_recursion_refused")
    assert call.started_at is None
    assert await in_thread(WorkJob.objects.count) == 1
    assert not JOB_TOOL_NAMES & set(offered(model, 0))


FAILURES: dict[str, tuple[Reply, str]] = {
    "500": (error_reply(500), "provider_unavailable"),
    "401": (error_reply(401, code="invalid_api_key"), "provider_auth"),
    "429": (error_reply(429), "provider_rate_limited"),
    "nothing": (answer(), "empty_output"),
    "blank": (answer("  \n"), "empty_output"),
    "invisible": (answer("\u200b \ufeff\u200d"), "empty_output"),
    "cut": (frames_reply(*Stream().opening()), "truncated_stream"),
    "incomplete": (
        frames_reply(
            *Stream().opening(),
            Stream().terminal("incomplete", incomplete_details={"reason": "max_tokens"}),
        ),
        "response_incomplete",
    ),
    "given up": (
        frames_reply(*Stream().opening(), Stream().terminal("cancelled")),
        "provider_cancelled",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_model_that_fails_fails_the_job_with_an_honest_notice(
    model: Simulator, failure: str, capfd: pytest.CaptureFixture[str]
) -> None:
    reply, code = FAILURES[failure]
    model.script(reply)
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask("my secret goal"))
    assert await ended(job) == ("failed", code)
    assert await told(job) == f"This job failed. {ErrorCode(code).label}"
    (request,) = await provider_steps_of(job)
    assert (request.state, request.error_code) == ("failed", code)
    assert model.posts == 1
    assert "secret" not in "".join(capfd.readouterr())


INCOMPLETE = Stream().terminal("incomplete", incomplete_details={"reason": "max_output_tokens"})
CUTS: dict[str, tuple[Sequence[Any], str]] = {
    "by its length": ([INCOMPLETE], "response_incomplete"),
    "by an error": ([Stream().terminal("failed", error={"code": "x"})], "provider_failed"),
    "by the end of the stream": ([], "truncated_stream"),
    "by the end of the connection": ([close()], "truncated_stream"),
    "by a reset of the connection": ([reset()], "truncated_stream"),
}


@pytest.mark.parametrize("cut", CUTS)
async def test_an_answer_that_was_cut_is_shown_as_far_as_it_came(
    model: Simulator, cut: str
) -> None:
    rest, code = CUTS[cut]
    stream = Stream()
    model.script(
        frames_reply(*stream.opening(), *stream.message("Once upon ", "a time"), *rest)
    )
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", code)
    label = ErrorCode(code).label
    assert await told(job) == (
        f"This job failed. {label}\n\nWhat it said last:\n\nOnce upon a time"
    )


@pytest.mark.parametrize("deltas", [["a" * 65_537], ["Once upon ", "a time", "a" * 65_536]])
async def test_of_an_answer_that_is_too_long_is_shown_what_fits(
    model: Simulator, deltas: list[str]
) -> None:
    stream = Stream()
    model.script(frames_reply(*stream.opening(), *stream.message(*deltas)))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "response_too_large")
    label = ErrorCode.RESPONSE_TOO_LARGE.label
    # a notice is bounded too: its own words and the mark of its cut take their part
    said = "".join(deltas)[: bounds.REPORT_MAX_BYTES - 1_000]
    assert (await told(job)).startswith(
        f"This job failed. {label}\n\nWhat it said last:\n\n{said}"
    )


async def test_an_answer_that_could_not_be_stored_is_shown(model: Simulator) -> None:
    """Two calls have one id: the second response is refused as a whole, with its words."""
    model.script(
        tool_calls(("call_1", "count", "{}"), response_id="resp_1", text="First words."),
        tool_calls(("call_1", "count", '{"a":1}'), response_id="resp_2", text="Second words."),
    )
    async with serving_jobs(model.base_url, Counter().tool) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "provider_call_id_conflict")
    assert (await told(job)).endswith("What it said last:\n\nSecond words.")


async def test_blank_words_do_not_hide_those_before_them(model: Simulator) -> None:
    model.script(
        counting(1, text="The answer is 42."), counting(2, text="\n\n"), stalled(gate="never")
    )
    async with serving_jobs(model.base_url, Counter().tool) as runtime:
        job = await in_thread(lambda: WorkJobFactory.create(wall_clock_seconds=4))
        job = await runtime.serve(job)
    assert await ended(job) == ("budget_exhausted", "deadline_passed")
    assert (await told(job)).endswith("What it said last:\n\nThe answer is 42.")
    await asyncio.to_thread(model.wait_for_disconnects)


async def test_an_answer_that_was_cut_by_a_person_is_not_shown(model: Simulator) -> None:
    """Not even where the service cuts it as well, after the person has."""
    stream = Stream()
    model.script(
        frames_reply(
            *stream.opening(), *stream.message("Once upon ", "a time"), hold("on"), INCOMPLETE
        )
    )
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.ask()
        serving = asyncio.create_task(runtime.serve(job))
        await asyncio.to_thread(model.wait_for_gate, "on")
        await in_thread(request_cancel, job.person_id, job.pk)
        model.release("on")
        job = await serving
    assert await ended(job) == ("cancelled", "cancelled")
    assert "Once upon" not in await told(job)


async def test_a_service_that_cannot_be_reached_fails_the_job() -> None:
    async with serving_jobs("http://127.0.0.1:9/v1") as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "provider_unreachable")


async def test_an_error_of_our_own_ends_the_job_as_internal(model: Simulator) -> None:
    class Broken:
        api = "responses"

        def respond(self, _: object) -> Any:
            raise RuntimeError("a bug")

        async def aclose(self) -> None:
            pass

    async with serving_jobs(model.base_url) as runtime:
        runtime.provider = Broken()
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "internal_error")


async def test_a_job_past_its_deadline_says_how_far_it_came(model: Simulator) -> None:
    model.script(counting(1), stalled("And now", gate="never"))
    async with serving_jobs(model.base_url, Counter().tool) as runtime:
        job = await in_thread(lambda: WorkJobFactory.create(wall_clock_seconds=4))
        job = await runtime.serve(job)
    assert await ended(job) == ("budget_exhausted", "deadline_passed")
    assert ErrorCode.DEADLINE_PASSED.label in await told(job)
    assert "1 succeeded" in await told(job)
    assert (await told(job)).endswith("What it said last:\n\nAnd now")
    await asyncio.to_thread(model.wait_for_disconnects)


def test_each_kind_has_instructions_and_the_local_model_gets_its_own(
    settings: Settings,
) -> None:
    tools = Registry([Counter().tool]).schemas()
    settings.LLM_API = "responses"
    deep = from_settings("deep_work", tools, "")
    coding = from_settings("coding", tools, "Paths are relative.")
    assert deep.instructions != coding.instructions
    assert coding.instructions.endswith("\nPaths are relative.")
    assert deep.tools == tools
    settings.LLM_API = "local"
    local = from_settings("deep_work", tools, "")
    assert local.tools == ()
    assert len(local.instructions) < 100


async def test_a_job_of_the_local_model_is_offered_no_tools_and_completes(
    model: Simulator, settings: Settings
) -> None:
    settings.LLM_API = "local"
    model.script(answer("A short answer."))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)
        server._asking = from_settings
        await server.run()
    await in_thread(job.refresh_from_db)
    assert await ended(job) == ("completed", "")
    assert offered(model, 0) == []
    (request,) = await provider_steps_of(job)
    assert not request.offers_tools
