"""The JSON API of jobs: what a job shows, and in which lists it is found."""

from __future__ import annotations

from typing import Any

import pgtrigger
import pytest
from django.db import connection

from recovery.errors import ErrorCode
from tests.factories import (
    ConversationFactory,
    JobReportFactory,
    UserFactory,
    WorkJobFactory,
    WorkProviderStepFactory,
    WorkStepFactory,
    fence_of,
)
from tests.support.api import Api
from tests.support.jobs import JOB_SHAPE
from turns.models import Conversation, Message
from work import projection
from work.coding.changes import Commit
from work.coding.tools import branch
from work.coding.worktrees import Facts
from work.models import WorkJob
from work.transitions import append_report, checkpoint_workspace, finish_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api() -> Api:
    return Api(UserFactory().pk)


@pytest.fixture
def conversation(api: Api) -> Conversation:
    return ConversationFactory(owner_id=api.user_id, owner=None)


def a_job(conversation: Conversation, **traits: Any) -> WorkJob:
    return WorkJobFactory(person=conversation.owner, conversation=conversation, **traits)


def test_a_job_shows_its_steps_in_order_and_its_usage_over_all_generations(
    api: Api, conversation: Conversation
) -> None:
    job = a_job(conversation, running=True)
    lost = WorkProviderStepFactory(job=job, interrupted=True, usage=None)
    asking = WorkProviderStepFactory(job=job, completed=True, usage={"input_tokens": 3})
    read = WorkStepFactory(job=job, provider_step=asking, succeeded=True)
    wrong = WorkStepFactory(job=job, provider_step=asking, refused=True, name="edit_file")
    last = WorkProviderStepFactory(
        job=job, completed=True, usage={"input_tokens": 4, "output_tokens": 2}
    )
    _, shown = api("GET", f"/jobs/{job.pk}")
    assert [(step["kind"], step["id"], step["state"]) for step in shown["steps"]] == [
        ("provider", str(lost.pk), "interrupted"),
        ("provider", str(asking.pk), "completed"),
        ("tool", str(read.pk), "succeeded"),
        ("tool", str(wrong.pk), "refused"),
        ("provider", str(last.pk), "completed"),
    ]
    assert shown["steps"][3] == {
        "id": str(wrong.pk), "kind": "tool", "name": "edit_file", "state": "refused",
        "error_code": "path_refused",
    }  # fmt: skip
    assert shown["usage"] == {"input_tokens": 7, "output_tokens": 2}


def test_a_coding_job_shows_its_branch_and_the_newest_commit_it_made(
    api: Api, conversation: Conversation
) -> None:
    job = a_job(conversation, running=True, coding=True)
    asking = WorkProviderStepFactory(job=job, completed=True)
    told = [
        branch._told(Commit(digit * 40, files), "holdfast/job")
        for digit, files in (("a", ("x.py",)), ("b", ("y.py", "z.py")), ("b", ()))
    ]
    _, shown = api("GET", f"/jobs/{job.pk}")
    assert (shown["branch"], shown["commit"]) == (None, None)
    checkpoint_workspace(fence_of(job), "0" * 40, "holdfast/job")
    for result in told:
        WorkStepFactory(
            job=job, provider_step=asking, succeeded=True, name="commit", result=result
        )
    WorkStepFactory(
        job=job, provider_step=asking, succeeded=True, result="Committed " + "c" * 40
    )
    _, shown = api("GET", f"/jobs/{job.pk}")
    assert (shown["branch"], shown["commit"]) == ("holdfast/job", "b" * 40)


REPORTED = "I looked.\n\nThe work is on branch it says."
LEFT = Facts(branch="holdfast/job", commit="a" * 40, changed_files=1, left_out=("pipe",))


@pytest.mark.parametrize(
    ("left", "branch_shown"),
    [
        (LEFT, "holdfast/job"),
        (Facts(), None),
        (Facts(lost=True), None),
        (Facts(stays_at="worktrees/1"), None),
    ],
)
def test_a_completed_job_shows_its_branch_where_something_is_on_it(
    api: Api, conversation: Conversation, left: Facts, branch_shown: str | None
) -> None:
    job = a_job(conversation, running=True, coding=True)
    checkpoint_workspace(fence_of(job), "0" * 40, "holdfast/job")
    asking = WorkProviderStepFactory(job=job, completed=True)
    WorkStepFactory(job=job, provider_step=asking, succeeded=True, effect="external")
    append_report(fence_of(job), f"{REPORTED}\n\n{left.sentence}")
    assert api("GET", f"/jobs/{job.pk}")[1]["branch"] == "holdfast/job"
    finish_job(fence_of(job), WorkJob.State.COMPLETED)
    assert api("GET", f"/jobs/{job.pk}")[1]["branch"] == branch_shown


@pytest.mark.parametrize(
    ("call", "branch_shown"),
    [
        ({"succeeded": True}, None),
        ({"effect": "reversible", "cancelled": True}, None),
        ({"effect": "reversible", "succeeded": True}, "holdfast/job"),
        ({"effect": "external", "running": True}, "holdfast/job"),
    ],
)
def test_a_job_that_broke_off_shows_its_branch_unless_its_calls_only_read(
    api: Api, conversation: Conversation, call: dict[str, Any], branch_shown: str | None
) -> None:
    job = a_job(conversation, running=True, coding=True)
    checkpoint_workspace(fence_of(job), "0" * 40, "holdfast/job")
    asking = WorkProviderStepFactory(job=job, completed=True)
    WorkStepFactory(job=job, provider_step=asking, **call)
    finish_job(fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)
    assert api("GET", f"/jobs/{job.pk}")[1]["branch"] == branch_shown


def test_a_completed_job_shows_its_result_and_the_message_that_shows_it(
    api: Api, conversation: Conversation
) -> None:
    job = a_job(conversation, running=True)
    append_report(fence_of(job), "**Found** it.")
    _, before = api("GET", f"/jobs/{job.pk}")
    assert (before["state"], before["report"], before["message_id"]) == ("running", None, None)
    finish_job(fence_of(job), WorkJob.State.COMPLETED)
    _, shown = api("GET", f"/jobs/{job.pk}")
    assert (shown["state"], shown["report"]) == ("completed", "**Found** it.")
    assert shown["finished_at"] is not None
    status, message = api("GET", f"/messages/{shown['message_id']}")
    assert (status, message["text"], message["turn_id"]) == (200, "**Found** it.", None)
    assert message["html"] == "<p><strong>Found</strong> it.</p>\n"
    assert message["about"] == {
        "type": "job", "id": str(job.pk), "label": "Deep work", "title": job.goal,
        "state": "completed",
    }  # fmt: skip
    _, page = api("GET", f"/conversations/{conversation.pk}/messages")
    assert [(m["id"], m["turn_id"]) for m in page["messages"]] == [(message["id"], None)]


def test_a_job_that_did_not_complete_shows_the_notice_and_not_its_result(
    api: Api, conversation: Conversation
) -> None:
    job = a_job(conversation, running=True)
    JobReportFactory(job=job, text="Nearly done.")
    api("POST", f"/jobs/{job.pk}/cancel")
    finish_job(fence_of(job), WorkJob.State.COMPLETED)
    _, shown = api("GET", f"/jobs/{job.pk}")
    assert (shown["state"], shown["error_code"]) == ("cancelled", "cancelled")
    assert shown["error_message"] == ErrorCode.CANCELLED.label
    assert shown["report"].startswith("This job was cancelled.")
    assert Message.objects.get(pk=shown["message_id"]).text == shown["report"]


def test_a_report_that_was_removed_leaves_the_job_without_one(
    api: Api, conversation: Conversation
) -> None:
    job = a_job(conversation, running=True)
    finish_job(fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_QUOTA)
    _, shown = api("GET", f"/jobs/{job.pk}")
    assert api("DELETE", f"/messages/{shown['message_id']}")[0] == 204
    _, left = api("GET", f"/jobs/{job.pk}")
    assert (left["report"], left["message_id"]) == (None, None)
    assert left["state"] == "failed"


def test_jobs_are_listed_newest_first_a_page_at_a_time(
    api: Api, conversation: Conversation
) -> None:
    elsewhere = ConversationFactory(owner=conversation.owner)
    rooms = (conversation, conversation, elsewhere, conversation, elsewhere)
    ids = [str(a_job(room).pk) for room in rooms]
    WorkJobFactory()  # somebody else's
    _, first = api("GET", "/jobs?limit=3")
    assert [job["id"] for job in first["jobs"]] == ids[:1:-1]
    assert first["next"] == ids[2]
    _, rest = api("GET", f"/jobs?limit=3&before={first['next']}")
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == (ids[1::-1], None)
    _, newer = api("GET", f"/jobs?after={ids[2]}")
    assert ([job["id"] for job in newer["jobs"]], newer["next"]) == (ids[:2:-1], None)
    _, between = api("GET", f"/jobs?after={ids[0]}&before={ids[4]}&limit=2")
    assert ([job["id"] for job in between["jobs"]], between["next"]) == (ids[3:1:-1], ids[2])
    _, own = api("GET", f"/jobs?conversation_id={elsewhere.pk}")
    assert [job["id"] for job in own["jobs"]] == [ids[4], ids[2]]
    assert {frozenset(job) for job in own["jobs"]} == {frozenset(JOB_SHAPE)}


def test_open_jobs_are_listed_alone_when_asked_for(
    api: Api, conversation: Conversation
) -> None:
    waiting, running = a_job(conversation), a_job(conversation, running=True)
    for end in ("completed", "failed", "cancelled", "interrupted", "budget_exhausted"):
        a_job(conversation, **{end: True})
    _, page = api("GET", "/jobs?state=open")
    assert [job["id"] for job in page["jobs"]] == [str(running.pk), str(waiting.pk)]


def test_open_jobs_of_a_person_with_many_ended_ones_are_found_by_an_index(
    api: Api, conversation: Conversation
) -> None:
    """Every page of a person asks for them now and then."""
    ended = a_job(conversation, completed=True)
    columns = {str(field.column) for field in WorkJob._meta.local_fields} - {"id"}
    named = ", ".join(sorted(columns))
    unqueued = pgtrigger.ignore("work.WorkJob:begins_queued")
    with unqueued, connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO work_workjob ({named}) "
            f"SELECT {named} FROM work_workjob, generate_series(1, 3000) WHERE id = %s",
            [ended.pk],
        )
        cursor.execute("ANALYZE work_workjob")
        cursor.execute(
            f"EXPLAIN SELECT j.id FROM work_workjob j "
            f"WHERE j.person_id = %s AND {projection.IS_OPEN} ORDER BY j.id DESC LIMIT 51",
            [api.user_id],
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "work_workjob_live" in plan, plan
