"""The JSON API of jobs and computers: asking for jobs and stopping them repeats safely."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.models import ReleaseSwitch
from recovery.switches import set_release
from tests.factories import (
    ComputerFactory,
    ConversationFactory,
    UserFactory,
    WorkJobFactory,
)
from tests.support.api import Api
from tests.support.jobs import JOB_SHAPE
from turns.models import Conversation
from work import bounds
from work.limits import JobLimits
from work.models import WorkJob

pytestmark = pytest.mark.django_db(transaction=True)


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
    assert job.keys() == JOB_SHAPE
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
