"""The JSON API of jobs and computers: its statuses and shapes, and that everything repeats
safely."""

from __future__ import annotations

import json
from typing import Any

import pgtrigger
import pytest
from django.db import connection
from django.test import Client

from recovery.errors import ErrorCode
from recovery.models import ReleaseSwitch
from recovery.switches import set_release
from tests.factories import (
    ComputerFactory,
    ConversationFactory,
    JobReportFactory,
    UserFactory,
    WorkJobFactory,
    WorkProviderStepFactory,
    WorkStepFactory,
    fence_of,
)
from turns.models import Conversation, Message
from turns.tokens import create_token
from work import bounds, projection
from work.coding.changes import Commit
from work.coding.tools import branch
from work.coding.worktrees import Facts
from work.limits import JobLimits
from work.models import WorkJob
from work.transitions import append_report, checkpoint_workspace, finish_job

pytestmark = pytest.mark.django_db(transaction=True)

SHAPE = {
    "id", "conversation_id", "kind", "goal", "state", "error_code", "error_message",
    "cancel_requested", "generation", "attempts", "report", "message_id", "branch", "commit",
    "steps", "usage", "created_at", "finished_at", "context", "computer_id", "agent", "cwd",
    "wall_clock_seconds",
}  # fmt: skip


class Api:
    """One person's program, with a bearer token."""

    def __init__(self, user_id: int) -> None:
        self.user_id = user_id
        self._client = Client(headers={"authorization": f"Bearer {create_token(user_id)}"})

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        answer = self.answer(method, path, body)
        return answer.status_code, answer.json() if answer.content else None

    def answer(self, method: str, path: str, body: object = None) -> Any:
        data = "" if body is None else json.dumps(body)
        return self._client.generic(
            method, f"/api/v1{path}", data, content_type="application/json"
        )


@pytest.fixture
def api() -> Api:
    return Api(UserFactory().pk)


@pytest.fixture
def conversation(api: Api) -> Conversation:
    return ConversationFactory(owner_id=api.user_id, owner=None)


def a_job(conversation: Conversation, **traits: Any) -> WorkJob:
    return WorkJobFactory(person=conversation.owner, conversation=conversation, **traits)


def asked(**changes: Any) -> dict[str, Any]:
    return {"kind": "deep_work", "goal": "Find the cause.", **changes}


# --- Asking ---


def test_what_a_body_holds_beyond_its_fields_decides_nothing(
    api: Api, conversation: Conversation
) -> None:
    """As in a turn's: a client may be newer than the server."""
    path = f"/conversations/{conversation.pk}"
    stranger = UserFactory.create()
    beyond = {"authority": {"tier": "shell"}, "budget": {}, "person_id": str(stranger.pk)}
    status, job = api("POST", f"{path}/jobs", asked(**beyond))
    assert status == 202
    row = WorkJob.objects.get(pk=job["id"])
    assert (row.person_id, row.authority) == (api.user_id, {"agent": ""})
    assert row.budget == JobLimits(row.wall_clock_seconds).snapshot()
    assert api("POST", f"{path}/turns", {"text": "Why?", **beyond})[0] == 202


def test_a_job_is_accepted_queued_with_what_was_asked(
    api: Api, conversation: Conversation
) -> None:
    body = asked(context="It began on Monday.", agent="", wall_clock_seconds=120)
    status, job = api("POST", f"/conversations/{conversation.pk}/jobs", body)
    assert status == 202
    assert job.keys() == SHAPE
    assert job | body == job
    assert (job["state"], job["conversation_id"]) == ("queued", str(conversation.pk))
    assert (job["generation"], job["attempts"], job["steps"]) == (0, 0, [])
    nothing = ("report", "message_id", "usage", "error_code", "computer_id", "finished_at")
    assert {job[name] for name in nothing} == {None}
    assert api("GET", f"/jobs/{job['id']}") == (200, job)


def test_a_coding_job_works_in_the_only_root_unless_told_otherwise(
    api: Api, conversation: Conversation
) -> None:
    computer = ComputerFactory(person=conversation.owner, roots=["/srv/projects"])
    body = asked(kind="coding", computer_id=str(computer.pk))
    path = f"/conversations/{conversation.pk}/jobs"
    status, job = api("POST", path, body)
    assert (status, job["computer_id"], job["cwd"]) == (202, str(computer.pk), "/srv/projects")
    assert job["wall_clock_seconds"] == bounds.COMPUTER_WALL_CLOCK_SECONDS
    for cwd in ("/srv/projects/a/../b", "//srv//projects/b/"):
        status, job = api("POST", path, {**body, "cwd": cwd})
        assert (status, job["cwd"]) == (202, "/srv/projects/b")


def test_a_coding_job_without_a_directory_is_told_to_name_one(
    api: Api, conversation: Conversation
) -> None:
    computer = ComputerFactory(person=conversation.owner, roots=["/srv/a", "/srv/b"])
    body = asked(kind="coding", computer_id=str(computer.pk))
    path = f"/conversations/{conversation.pk}/jobs"
    problem = {
        "code": "outside_roots",
        "message": "Name a directory that jobs may work in on this computer.",
    }
    assert api("POST", path, body) == (422, problem)
    assert api("POST", path, {**body, "cwd": "/etc"}) == (422, problem)


def test_a_client_key_starts_one_job_whatever_became_of_it(
    api: Api, conversation: Conversation
) -> None:
    """behaviour A2, of jobs"""
    path = f"/conversations/{conversation.pk}/jobs"
    status, job = api("POST", path, asked(client_key="k"))
    assert status == 202
    assert api("POST", path, asked(client_key="k")) == (200, job)
    status, problem = api("POST", path, asked(client_key="k", goal="Something else."))
    assert (status, problem["code"]) == (409, "client_key_conflict")
    api("POST", f"/jobs/{job['id']}/cancel")
    status, repeated = api("POST", path, asked(client_key="k"))
    assert (status, repeated["id"], repeated["state"]) == (200, job["id"], "cancelled")
    assert WorkJob.objects.count() == 1


@pytest.mark.parametrize("kind", ["deep_work", "coding"])
def test_a_repeat_may_say_what_the_job_shows_in_place_of_what_was_left_out(
    api: Api, conversation: Conversation, kind: str
) -> None:
    computer = ComputerFactory(person=conversation.owner, roots=["/srv/projects"])
    place = {"computer_id": str(computer.pk)} if kind == "coding" else {}
    path = f"/conversations/{conversation.pk}/jobs"
    body = asked(kind=kind, client_key="k", **place)
    status, job = api("POST", path, body)
    shown = {"cwd": job["cwd"], "wall_clock_seconds": job["wall_clock_seconds"]}
    assert (status, None in shown.values()) == (202, False)
    for said in (*({name: value} for name, value in shown.items()), shown):
        assert api("POST", path, {**body, **said}) == (200, job)
    status, problem = api("POST", path, {**body, "wall_clock_seconds": 10})
    assert (status, problem["code"]) == (409, "client_key_conflict")
    assert WorkJob.objects.count() == 1


def test_what_a_job_shows_is_enough_to_ask_for_the_same_again(
    api: Api, conversation: Conversation
) -> None:
    computer = ComputerFactory(person=conversation.owner, roots=["/srv/a", "/srv/b"])
    path = f"/conversations/{conversation.pk}/jobs"
    body = asked(
        kind="coding", computer_id=str(computer.pk), cwd="/srv/b", context="c", agent="x"
    )
    _, first = api("POST", path, body)
    names = (
        "kind", "goal", "context", "computer_id", "agent", "cwd", "wall_clock_seconds",
    )  # fmt: skip
    status, second = api("POST", path, {name: first[name] for name in names})
    assert status == 202
    assert second["id"] != first["id"]
    assert {n: second[n] for n in names} == {n: first[n] for n in names}
    one, two = WorkJob.objects.order_by("pk")
    assert (one.prompt, one.authority, one.budget) == (two.prompt, two.authority, two.budget)


def test_the_ninth_open_job_of_a_person_is_told_when_to_come_back(
    api: Api, conversation: Conversation
) -> None:
    for _ in range(bounds.ACTIVE_JOBS_PER_OWNER):
        a_job(conversation)
    answer = api.answer("POST", f"/conversations/{conversation.pk}/jobs", asked())
    assert (answer.status_code, answer.json()["code"]) == (429, "job_limit_reached")
    assert int(answer.headers["Retry-After"]) > 0


def test_no_job_begins_while_work_is_paused(api: Api, conversation: Conversation) -> None:
    path = f"/conversations/{conversation.pk}/jobs"
    known = api("POST", path, asked(client_key="k"))[1]
    set_release("work", ReleaseSwitch.State.DRAINING)
    status, problem = api("POST", path, asked())
    assert (status, problem["code"]) == (503, "paused")
    # what is there is still shown, repeated and stopped
    assert api("POST", path, asked(client_key="k")) == (200, known)
    assert api("POST", f"/jobs/{known['id']}/cancel")[0] == 202


# --- Looking ---


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
    assert {frozenset(job) for job in own["jobs"]} == {frozenset(SHAPE)}


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


# --- Stopping ---


def test_a_job_nobody_has_begun_is_stopped_at_once_and_answers_with_its_end_then(
    api: Api, conversation: Conversation
) -> None:
    job = a_job(conversation)
    status, stopped = api("POST", f"/jobs/{job.pk}/cancel")
    assert (status, stopped["state"], stopped["error_code"]) == (202, "cancelled", "cancelled")
    assert api("POST", f"/jobs/{job.pk}/cancel") == (200, stopped)


def test_a_running_job_is_asked_to_stop(api: Api, conversation: Conversation) -> None:
    job = a_job(conversation, running=True)
    for _ in range(2):
        status, shown = api("POST", f"/jobs/{job.pk}/cancel")
        assert (status, shown["state"], shown["cancel_requested"]) == (202, "running", True)


# --- Computers ---


def test_a_persons_computers_are_listed_without_what_is_not_to_be_seen(
    api: Api, conversation: Conversation
) -> None:
    mine = ComputerFactory(
        person=conversation.owner,
        name="laptop",
        roots=["/srv/a", "/srv/b"],
        checks={"tests": ["make", "test"], "lint": ["make", "lint"]},
    )
    ComputerFactory(person=conversation.owner, revoked=True)
    ComputerFactory()
    _, found = api("GET", "/computers")
    (shown,) = found["computers"]
    assert shown.pop("created_at").endswith("Z")
    assert shown == {
        "id": str(mine.pk), "name": "laptop", "roots": ["/srv/a", "/srv/b"],
        "tier": "curated", "checks": ["lint", "tests"],
    }  # fmt: skip
