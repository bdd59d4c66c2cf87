"""Jobs in the live view: everything committed is shown once, bounded, with the report as a
message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from channels.layers import get_channel_layer
from django.contrib.auth.models import User
from django.test import Client

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from recovery.fences import Fence
from tests.factories import (
    ConversationFactory,
    JobReportFactory,
    JobReportMessageFactory,
    MessageFactory,
    RuntimeFactory,
    TurnFactory,
    WorkJobFactory,
    WorkProviderStepFactory,
    WorkStepFactory,
    fence_of,
    request_facts,
)
from tests.support.live import LiveClient, Shown
from turns import bounds as turns_bounds
from turns import events, frames, live, pages
from turns.models import Conversation
from turns.tokens import create_token
from turns.transitions import RequestedCall, delete_message
from work import bounds, transitions
from work.models import WorkJob, WorkStep
from work.panel import variants
from work.transitions import JobAsk, admit_job, append_report, finish_job, request_cancel

pytestmark = pytest.mark.django_db(transaction=True)
REPAIRED_SECONDS = turns_bounds.SLOW_POLL_SECONDS + 1.5


@pytest.fixture(autouse=True)
async def reader() -> AsyncIterator[live.Reader]:
    yield live.start()
    await live.stop()
    if hasattr(layer := get_channel_layer(), "close"):
        await layer.close()


class Place:
    """A conversation somebody looks at."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.person: User = conversation.owner
        self.headers = {"authorization": f"Bearer {create_token(self.person.pk)}"}
        self.runtime = RuntimeFactory.create()

    async def look(self, *, after: str = "", shown: Shown | None = None) -> LiveClient:
        client = LiveClient(self.conversation.pk, self.headers, after=after, shown=shown)
        return await client.connect()

    async def do(self, act: Any, *args: Any, **values: Any) -> Any:
        return await in_thread(lambda: act(*args, **values))

    async def job(self, **traits: Any) -> WorkJob:
        """Write a job's row, past the transitions."""
        job: WorkJob = await self.do(
            WorkJobFactory, person=self.person, conversation=self.conversation, **traits
        )
        return job

    async def admit(self, goal: str = "Find the cause.") -> WorkJob:
        admission = await self.do(
            admit_job, self.person.pk, self.conversation.pk, JobAsk("deep_work", goal)
        )
        job: WorkJob = admission.job
        return job

    async def claim(self, job: WorkJob) -> Fence:
        fence = await self.do(transitions.claim_job, job.pk, owner=self.runtime.pk)
        assert fence is not None
        return fence

    async def complete(self, fence: Fence, report: str = "It was the **belt**.") -> None:
        await self.do(append_report, fence, report)
        await self.do(finish_job, fence, WorkJob.State.COMPLETED)


@pytest.fixture
def place() -> Place:
    return Place(ConversationFactory.create())


async def seen(client: LiveClient, **content: Any) -> Any:
    """Return the job's frame once it says so."""
    return await client.until("job", **content)


# --- What is shown ---


async def test_a_job_is_followed_from_its_admission_to_its_report(place: Place) -> None:
    client = await place.look()
    assert (await client.next())["jobs"] == []
    job = await place.admit()
    queued = await seen(client, state="queued")
    assert (queued["id"], queued["goal"]) == (str(job.pk), "Find the cause.")

    fence = await place.claim(job)
    running = await seen(client, state="running")
    assert (running["attempts"], running["steps"], running["report"]) == (1, [], None)

    asking = await place.do(transitions.start_provider_step, fence, request_facts())
    asked = await seen(client)
    assert [(s["kind"], s["state"]) for s in asked["steps"]] == [("provider", "started")]
    calls = [RequestedCall("call_1", "item_1", "search_history", '{"query": "belt"}')]
    (step,) = await place.do(
        transitions.complete_provider_step,
        fence,
        asking.pk,
        response_id="resp_1",
        usage={"input_tokens": 5},
        text="",
        calls=calls,
    )
    await place.do(transitions.start_step, fence, step.pk)
    while True:
        at_work = await seen(client)
        if at_work["steps"][-1]["state"] == "running":
            break
    assert (at_work["steps"][-1]["name"], at_work["steps_done"]) == ("search_history", 0)
    await place.do(
        transitions.finish_step, fence, step.pk, WorkStep.State.SUCCEEDED, result="found"
    )
    assert (await seen(client, steps_done=1))["usage"] == {"input_tokens": 5}

    await place.complete(fence)
    message = await client.until("message")
    assert (message["role"], message["turn_id"]) == ("assistant", None)
    assert message["html"] == "<p>It was the <strong>belt</strong>.</p>\n"
    assert message["about"]["id"] == str(job.pk)
    done = await seen(client, state="completed")
    assert (done["report"], done["message_id"]) == ("It was the **belt**.", message["id"])
    assert done["elapsed_seconds"] >= 0
    await client.leave()


async def test_a_taken_over_job_says_how_often_it_was_claimed(place: Place) -> None:
    job = await place.job(released=True)
    client = await place.look()
    (waiting,) = (await client.next())["jobs"]
    assert (waiting["state"], waiting["attempts"]) == ("queued", 1)
    await place.claim(job)
    assert (await seen(client, state="running"))["attempts"] == 2
    await client.leave()


async def test_a_snapshot_has_the_newest_jobs_and_every_open_one_last(place: Place) -> None:
    waiting = await place.job()
    ended = [await place.job(completed=True, ended_revision=1) for _ in range(25)]
    client = await place.look()
    shown = (await client.next())["jobs"]
    assert [job["id"] for job in shown] == [
        *(str(job.pk) for job in ended[-bounds.JOBS_SHOWN :]),
        str(waiting.pk),
    ]
    await client.leave()


async def test_reports_stand_in_snapshots_and_pages_like_other_messages(place: Place) -> None:
    turn = await place.do(TurnFactory, conversation=place.conversation, completed=True)
    job = await place.job(running=True)
    await place.do(
        finish_job, fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.TOOL_FAILED
    )
    client = await place.look()
    report, answer, question = (await client.next())["messages"]
    assert (answer["turn_id"], question["turn_id"]) == (str(turn.pk), str(turn.pk))
    assert (report["turn_id"], report["state"]) == (None, "complete")
    assert report["about"]["state"] == "failed"
    page = await place.do(pages.messages, place.conversation.pk, place.person.pk, limit=9)
    (shown, *_) = page.messages
    assert (shown.id, shown.turn_id) == (report["id"], None)
    await client.leave()


# --- Once, whatever is lost ---


async def test_what_ended_while_nobody_looked_is_shown_once_after_the_cursor(
    place: Place,
) -> None:
    job = await place.admit()
    fence = await place.claim(job)
    client = await place.look()
    await client.next()
    shown = await client.leave()
    await place.complete(fence)
    other = await place.admit("Another.")

    client = await place.look(after=shown.cursor, shown=shown)
    first = [await client.next() for _ in range(3)]
    assert [(f["type"], f.get("id")) for f in first] == [
        ("message", first[0]["id"]),
        ("job", str(job.pk)),
        ("job", str(other.pk)),
    ]
    # only the last one moves the cursor: whoever loses it is sent all three again
    assert len({f["cursor"] for f in first}) == 2
    shown = await client.leave()

    client = await place.look(after=first[1]["cursor"], shown=shown)
    again = [await client.next() for _ in range(3)]
    assert [strip(f) for f in again] == [strip(f) for f in first]
    shown = await client.leave()

    client = await place.look(after=shown.cursor, shown=shown)
    await place.do(request_cancel, place.person.pk, other.pk)
    later = [await client.next() for _ in range(2)]
    assert [f["type"] for f in later] == ["message", "job"]
    assert later[1]["id"] == str(other.pk)
    assert len(shown.messages) == 2
    await client.leave()


def strip(frame: dict[str, Any]) -> dict[str, Any]:
    """Return the frame without what the time of reading decides."""
    return {key: value for key, value in frame.items() if key != "elapsed_seconds"}


async def test_an_end_is_not_told_again_with_what_happens_afterwards(place: Place) -> None:
    done = await place.claim(await place.admit())
    await place.complete(done)
    client = await place.look()
    await client.next()
    job = await place.admit("Another.")
    await place.claim(job)
    while True:
        frame = await client.next()
        assert (frame["type"], frame.get("id")) == ("job", str(job.pk))
        if frame["state"] == "running":
            break
    await client.leave()


async def test_doubled_hints_show_nothing_twice(place: Place) -> None:
    await place.claim(await place.admit())
    client = await place.look()
    await client.next()
    for _ in range(5):
        events.announce(place.conversation.pk)
    await client.send('{"type": "ping"}')
    assert (await client.next())["type"] == "pong"
    await client.leave()


async def test_lost_hints_are_made_up_for_by_the_slow_poll(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await place.look()
    await client.next()
    monkeypatch.setattr(events, "announce", lambda _conversation_id: None)
    job = await place.admit()
    fence = await place.claim(job)
    await place.complete(fence)
    message = await client.next(REPAIRED_SECONDS)
    assert (message["type"], message["about"]["id"]) == ("message", str(job.pk))
    assert (await client.next())["state"] == "completed"
    await client.leave()


async def test_who_missed_more_than_is_shown_gets_a_snapshot(place: Place) -> None:
    client = await place.look()
    await client.next()
    shown = await client.leave()
    for _ in range(bounds.JOBS_SHOWN + 1):
        job = await place.admit()
        await place.do(request_cancel, place.person.pk, job.pk)
    client = await place.look(after=shown.cursor, shown=shown)
    snapshot = await client.next()
    assert snapshot["type"] == "snapshot"
    assert len(snapshot["jobs"]) == bounds.JOBS_SHOWN
    assert len(snapshot["messages"]) == bounds.JOBS_SHOWN + 1
    await client.leave()


async def test_a_removed_report_leaves_its_job(place: Place) -> None:
    job = await place.admit()
    await place.do(request_cancel, place.person.pk, job.pk)
    client = await place.look()
    (report,) = (await client.next())["messages"]
    await place.do(delete_message, place.person.pk, int(report["id"]))
    snapshot = await client.until("snapshot")
    assert snapshot["messages"] == []
    assert [(j["state"], j["message_id"]) for j in snapshot["jobs"]] == [("cancelled", None)]
    await client.leave()


async def test_jobs_of_another_conversation_or_person_are_not_shown(place: Place) -> None:
    await place.do(
        WorkJobFactory,
        person=place.person,
        conversation=await place.do(ConversationFactory, owner=place.person),
    )
    await place.do(WorkJobFactory)
    client = await place.look()
    assert (await client.next())["jobs"] == []
    await client.leave()


# --- Bounds ---

# six bytes of JSON for each, the most there is
WORST = "\x01"


async def test_the_largest_job_there_can_be_fits_into_a_frame(place: Place) -> None:
    """LiveClient fails a test whose frame is larger than 64 KiB."""
    client = await place.look()
    await client.next()
    job = await place.job(running=True, goal=WORST * bounds.GOAL_MAX_BYTES, prompt="x")

    def work() -> None:
        provider = WorkProviderStepFactory.create(job=job, completed=True)
        for _ in range(bounds.TOOL_CALLS_HARD_STOP):
            name = WORST * turns_bounds.TOOL_NAME_MAX_BYTES
            WorkStepFactory.create(job=job, provider_step=provider, succeeded=True, name=name)

    await place.do(work)
    fence = fence_of(job)
    await place.do(append_report, fence, "x" + WORST * (bounds.REPORT_MAX_BYTES - 1))
    await place.do(finish_job, fence, WorkJob.State.COMPLETED)
    shown = await seen(client, state="completed")
    assert shown["steps_done"] == bounds.TOOL_CALLS_HARD_STOP
    assert shown["report"] is None
    message = client.shown.messages[shown["message_id"]]
    assert message["about"]["id"] == str(job.pk)
    await client.leave()


async def test_a_snapshot_of_large_jobs_keeps_the_open_ones_and_room_for_messages(
    place: Place,
) -> None:
    await place.do(MessageFactory, conversation=place.conversation, text="w" * 8_000)
    for _ in range(bounds.JOBS_SHOWN):
        await place.job(
            completed=True, ended_revision=1, goal=WORST * bounds.GOAL_MAX_BYTES, prompt="x"
        )
    waiting = [
        await place.job(goal=WORST * bounds.GOAL_MAX_BYTES, prompt="x")
        for _ in range(bounds.ACTIVE_JOBS_PER_OWNER)
    ]
    client = await place.look()
    snapshot = await client.next()
    assert {str(job.pk) for job in waiting} <= {job["id"] for job in snapshot["jobs"]}
    assert len(json.dumps(snapshot["jobs"]).encode()) <= frames.PANELS_MAX_BYTES * 1.05
    assert [m["text"] for m in snapshot["messages"]] == ["w" * 8_000]
    await client.leave()


def test_the_smallest_form_of_a_job_still_says_what_it_is() -> None:
    step = {
        "id": "1",
        "kind": "tool",
        "name": "x" * 128,
        "state": "running",
        "error_code": None,
    }
    one = {
        "id": "9" * 19, "conversation_id": "9" * 19, "kind": "deep_work", "goal": "é" * 1_000,
        "state": "running", "error_code": None, "cancel_requested": False, "generation": 9,
        "attempts": 3, "report": "r" * 8_000, "message_id": None, "branch": None,
        "commit": None, "steps": [{**step, "id": str(n)} for n in range(64)], "usage": None,
        "created_at": "2026-01-01T00:00:00+00:00", "finished_at": None, "computer": None,
        "steps_done": 70, "elapsed_seconds": 3.5,
    }  # fmt: skip
    whole, silent, short, least = variants(one)
    assert (whole["report"], silent["report"]) == ("r" * 8_000, None)
    assert [s["id"] for s in short["steps"]] == [str(n) for n in range(56, 64)]
    assert least["goal"] == "é" * 100 + "…"
    assert [s["id"] for s in least["steps"]] == ["63"]
    assert len(json.dumps(least, ensure_ascii=False)) < 1_500


def test_a_report_is_in_the_page_before_any_script_runs(client: Client, place: Place) -> None:
    job = WorkJobFactory.create(
        person=place.person, conversation=place.conversation, running=True, goal="<b>Why</b>?"
    )
    finish_job(fence_of(job), WorkJob.State.BUDGET_EXHAUSTED)
    client.force_login(place.person)
    page = client.get(f"/c/{place.conversation.pk}/").content.decode()
    assert f'data-about="job" data-about-id="{job.pk}"' in page
    assert '<span class="about-state">budget exhausted</span>' in page
    assert '<span class="about-title" dir="auto">&lt;b&gt;Why&lt;/b&gt;?</span>' in page
    assert "This job ended before it was done." in page
    for template in ('id="job"', 'id="job-form"', "work/jobs.css", "work/jobs.js"):
        assert template in page


def test_the_list_marks_a_conversation_while_a_job_of_it_is_open() -> None:
    job = WorkJobFactory.create(running=True)
    waiting = WorkJobFactory.create(person=job.person)
    ConversationFactory.create(owner=job.person)
    WorkJobFactory.create(person=job.person, completed=True)
    WorkJobFactory.create(running=True)

    def active() -> set[str]:
        listed = pages.conversations(job.person_id, limit=10)
        assert len(listed) == 4
        return {shown.id for shown, _ in listed if shown.active}

    assert active() == {str(job.conversation_id), str(waiting.conversation_id)}
    finish_job(fence_of(job), WorkJob.State.CANCELLED)
    assert active() == {str(waiting.conversation_id)}


async def test_a_message_added_by_nobody_known_is_about_nothing(place: Place) -> None:
    await place.do(MessageFactory, conversation=place.conversation, answered=True)
    client = await place.look()
    (message,) = (await client.next())["messages"]
    assert message["about"] is None
    await client.leave()


async def test_a_report_linked_by_hand_is_found_by_its_message(place: Place) -> None:
    job = await place.job(running=True)
    report = await place.do(JobReportFactory, job=job)
    link = await place.do(JobReportMessageFactory, report=report)
    client = await place.look()
    (message,) = (await client.next())["messages"]
    assert message["about"]["id"] == str(job.pk)
    assert message["id"] == str(link.message_id)
    await client.leave()
