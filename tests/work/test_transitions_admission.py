"""Delegating: what is stored, what is refused, and that asking twice is asking once."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from recovery.errors import ErrorCode, Refused
from recovery.switches import State, set_release
from tests import factories as make
from tests.support.jobs import every_job_row
from turns.models import Conversation
from work import bounds
from work.limits import JobLimits
from work.models import Computer, WorkJob
from work.transitions import JobAsk, admit_job, request_cancel

pytestmark = pytest.mark.django_db


@pytest.fixture
def conversation() -> Conversation:
    return make.ConversationFactory.create()


def admit(conversation: Conversation, **ask: Any) -> WorkJob:
    asked = JobAsk(**{"kind": "deep_work", "goal": "Find out.", **ask})
    return admit_job(conversation.owner_id, conversation.pk, asked).job


def refusal(conversation: Conversation, **ask: Any) -> ErrorCode:
    """Return why it is refused, having written nothing."""
    before = every_job_row()
    with pytest.raises(Refused) as refused:
        admit(conversation, **ask)
    assert every_job_row() == before
    return refused.value.code


def seconds_until(job: WorkJob, column: str) -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT extract(epoch FROM {column} - created_at) FROM work_workjob WHERE id = %s",
            [job.pk],
        )
        return float(cursor.fetchone()[0])


def test_a_deep_work_job_keeps_what_was_asked_and_allowed(conversation: Conversation) -> None:
    said = make.MessageFactory.create(conversation=conversation)
    revision = Conversation.objects.get().revision

    job = admit(conversation, context="Since spring.", agent="")

    assert (job.state, job.generation, job.owner, job.attempts) == ("queued", 0, None, 0)
    assert (job.person_id, job.conversation_id) == (conversation.owner_id, conversation.pk)
    assert job.prompt == "Find out.\n\nContext:\nSince spring."
    assert (job.authority, job.host_id, job.computer_id, job.cwd) == (
        {"agent": ""},
        "",
        None,
        "",
    )
    assert job.model == settings.LLM_MODEL
    assert job.budget == JobLimits().snapshot()
    assert job.budget["report_bytes"] == 8_000
    assert job.before_message_id == said.pk + 1
    assert seconds_until(job, "queue_deadline_at") == bounds.QUEUE_DEADLINE_SECONDS
    assert seconds_until(job, "next_dispatch_at") == 5
    assert job.deadline_at is None
    assert Conversation.objects.get().revision == revision + 1


def test_a_coding_job_keeps_what_its_computer_allowed(conversation: Conversation) -> None:
    computer = make.ComputerFactory.create(person=conversation.owner, tier="probe")

    job = admit(conversation, kind="coding", computer_id=computer.pk, agent="careful")

    assert job.authority == {
        "computer_id": computer.pk,
        "name": computer.name,
        "host_id": computer.host_id,
        "roots": ["/srv/projects"],
        "tier": "probe",
        "checks": {"tests": ["script/test"]},
        "cwd": "/srv/projects",
        "agent": "careful",
    }
    assert (job.host_id, job.cwd) == (computer.host_id, "/srv/projects")
    assert job.wall_clock_seconds == bounds.COMPUTER_WALL_CLOCK_SECONDS


def test_what_changes_on_the_computer_afterwards_does_not_reach_the_job(
    conversation: Conversation,
) -> None:
    computer = make.ComputerFactory.create(person=conversation.owner)
    job = admit(conversation, kind="coding", computer_id=computer.pk)
    before = job.authority

    Computer.objects.update(roots=["/"], tier="shell", name="renamed", checks={})

    job.refresh_from_db()
    assert job.authority == before


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        ({"goal": " \n"}, ErrorCode.EMPTY_GOAL),
        ({"goal": "\u200b\ufeff"}, ErrorCode.EMPTY_GOAL),
        ({"goal": "\u3164"}, ErrorCode.EMPTY_GOAL),
        ({"goal": "\u115f \u2800"}, ErrorCode.EMPTY_GOAL),
        ({"goal": "\ufe0f\u034f\U000e0041"}, ErrorCode.EMPTY_GOAL),
        ({"goal": "é" * 1_001}, ErrorCode.GOAL_TOO_LONG),
        ({"context": "x" * 2_001}, ErrorCode.CONTEXT_TOO_LONG),
        ({"goal": "nul \x00"}, ErrorCode.INVALID_TEXT),
        ({"context": "half \ud800"}, ErrorCode.INVALID_TEXT),
        ({"agent": "x" * 65}, ErrorCode.INVALID_REQUEST),
        ({"kind": "computer"}, ErrorCode.JOB_KIND_UNAVAILABLE),
        ({"kind": "anything"}, ErrorCode.JOB_KIND_UNAVAILABLE),
        ({"kind": "coding"}, ErrorCode.COMPUTER_REQUIRED),
        ({"kind": "deep_work", "computer_id": 1}, ErrorCode.INVALID_REQUEST),
        ({"kind": "deep_work", "cwd": "/tmp"}, ErrorCode.INVALID_REQUEST),
        ({"wall_clock_seconds": 9}, ErrorCode.WALL_CLOCK_OUT_OF_RANGE),
        ({"wall_clock_seconds": 601}, ErrorCode.WALL_CLOCK_OUT_OF_RANGE),
    ],
)
def test_what_cannot_be_a_job_is_refused(
    conversation: Conversation, ask: dict[str, Any], code: ErrorCode
) -> None:
    assert refusal(conversation, **ask) == code


def test_a_refused_time_is_answered_with_the_allowed_ones() -> None:
    least, most, deep_work = (
        f"{seconds:,}"
        for seconds in (
            bounds.WALL_CLOCK_MIN_SECONDS,
            bounds.COMPUTER_WALL_CLOCK_SECONDS,
            bounds.WALL_CLOCK_SECONDS,
        )
    )
    assert ErrorCode.WALL_CLOCK_OUT_OF_RANGE.label == (
        f"A job is given from {least} to {most} seconds; deep work, no more than {deep_work}."
    )


def test_a_person_may_ask_for_less_time(conversation: Conversation) -> None:
    job = admit(conversation, wall_clock_seconds=10)
    assert (job.wall_clock_seconds, job.budget["wall_clock_seconds"]) == (10, 10)


@pytest.mark.parametrize("whose", ["nobodys", "anothers", "revoked"])
def test_an_unknown_foreign_or_revoked_computer_is_not_found(
    conversation: Conversation, whose: str
) -> None:
    """behaviour O13, R4"""
    pk = 999_999
    if whose == "anothers":
        pk = make.ComputerFactory.create().pk
    if whose == "revoked":
        pk = make.ComputerFactory.create(person=conversation.owner, revoked=True).pk

    assert refusal(conversation, kind="coding", computer_id=pk) == ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("cwd", "kept"),
    [
        ("/srv/projects", "/srv/projects"),
        ("/srv/projects/", "/srv/projects"),
        ("/srv//projects/./one", "/srv/projects/one"),
        ("/srv/projects/one/../two", "/srv/projects/two"),
        ("//srv/projects/one", "/srv/projects/one"),
    ],
)
def test_a_directory_inside_a_root_is_kept_without_detours(
    conversation: Conversation, cwd: str, kept: str
) -> None:
    computer = make.ComputerFactory.create(person=conversation.owner)
    job = admit(conversation, kind="coding", computer_id=computer.pk, cwd=cwd)
    assert job.cwd == job.authority["cwd"] == kept


@pytest.mark.parametrize(
    "cwd",
    [
        "/",
        "/srv",
        "/srv/projects-of-another",
        "/srv/projects/../../etc",
        "projects",
        "../projects",
        "/srv/projects/" + "x" * 512,
    ],
)
def test_a_directory_outside_the_roots_is_refused(conversation: Conversation, cwd: str) -> None:
    """behaviour R4"""
    computer = make.ComputerFactory.create(person=conversation.owner)
    code = refusal(conversation, kind="coding", computer_id=computer.pk, cwd=cwd)
    assert code == ErrorCode.OUTSIDE_ROOTS


@pytest.mark.parametrize("roots", [[], ["/srv/a", "/srv/b"]])
def test_without_one_root_the_directory_must_be_said(
    conversation: Conversation, roots: list[str]
) -> None:
    computer = make.ComputerFactory.create(person=conversation.owner, roots=roots)
    code = refusal(conversation, kind="coding", computer_id=computer.pk)
    assert code == ErrorCode.OUTSIDE_ROOTS


@pytest.mark.parametrize("whose", ["nobodys", "anothers"])
def test_an_unknown_and_a_foreign_conversation_look_the_same(
    conversation: Conversation, whose: str
) -> None:
    pk = 999_999 if whose == "nobodys" else make.ConversationFactory.create().pk
    with pytest.raises(Refused) as refused:
        admit_job(conversation.owner_id, pk, JobAsk("deep_work", "Find out."))
    assert refused.value.code == ErrorCode.NOT_FOUND


def test_the_same_key_and_ask_return_the_job_there(conversation: Conversation) -> None:
    """Nothing is written the second time, whatever became of the job."""
    ask = JobAsk("deep_work", "Find out.")
    first = admit_job(conversation.owner_id, conversation.pk, ask, client_key="k")
    request_cancel(conversation.owner_id, first.job.pk)
    before = every_job_row()

    again = admit_job(conversation.owner_id, conversation.pk, ask, client_key="k")

    assert (first.created, again.created, again.job.pk) == (True, False, first.job.pk)
    assert again.job.state == "cancelled"
    assert every_job_row() == before


def test_the_same_key_for_another_ask_is_a_conflict(conversation: Conversation) -> None:
    ask = JobAsk("deep_work", "Find out.")
    admit_job(conversation.owner_id, conversation.pk, ask, client_key="k")
    before = every_job_row()

    with pytest.raises(Refused) as refused:
        admit_job(
            conversation.owner_id,
            conversation.pk,
            JobAsk("deep_work", "Do it."),
            client_key="k",
        )

    assert refused.value.code == ErrorCode.CLIENT_KEY_CONFLICT
    assert every_job_row() == before


def test_the_key_is_the_conversations_own() -> None:
    ask = JobAsk("deep_work", "Find out.")
    person = make.UserFactory.create()
    for conversation in make.ConversationFactory.create_batch(2, owner=person):
        assert admit_job(person.pk, conversation.pk, ask, client_key="k").created


@pytest.mark.parametrize("key", ["", "x" * 201, "nul \x00"])
def test_a_key_that_cannot_be_stored_is_refused(conversation: Conversation, key: str) -> None:
    with pytest.raises(Refused) as refused:
        admit_job(
            conversation.owner_id, conversation.pk, JobAsk("deep_work", "Do."), client_key=key
        )
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_a_person_has_at_most_eight_open_jobs(conversation: Conversation) -> None:
    """Over all conversations; ended ones and other people's do not count."""
    person = conversation.owner
    make.WorkJobFactory.create_batch(4, person=person)
    make.WorkJobFactory.create_batch(3, person=person, running=True)
    make.WorkJobFactory.create(person=person, released=True)
    make.WorkJobFactory.create(person=person, completed=True)
    make.WorkJobFactory.create()

    assert refusal(conversation) == ErrorCode.JOB_LIMIT_REACHED

    waiting = WorkJob.objects.of_person(person.pk).filter(state="queued")[0]
    request_cancel(person.pk, waiting.pk)
    assert admit(conversation).state == "queued"


def test_the_limit_says_when_to_come_back(conversation: Conversation) -> None:
    make.WorkJobFactory.create_batch(8, person=conversation.owner)
    with pytest.raises(Refused) as refused:
        admit(conversation)
    assert refused.value.retry_after_seconds


@pytest.mark.parametrize("state", [State.DRAINING, State.DISABLED])
def test_while_work_is_paused_nothing_is_admitted(
    conversation: Conversation, state: State
) -> None:
    set_release("work", state)
    assert refusal(conversation) == ErrorCode.PAUSED


def test_a_repeated_key_is_answered_while_work_is_paused(conversation: Conversation) -> None:
    ask = JobAsk("deep_work", "Find out.")
    admit_job(conversation.owner_id, conversation.pk, ask, client_key="k")
    set_release("work", State.DRAINING)
    assert not admit_job(conversation.owner_id, conversation.pk, ask, client_key="k").created
