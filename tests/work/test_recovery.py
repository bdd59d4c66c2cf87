"""WorkRecovery: which jobs it takes up, what becomes of them, and that twice is once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from recovery.bounds import ADOPTION_ATTEMPTS
from recovery.errors import StaleFence
from recovery.models import RecoveryEvent, Runtime
from recovery.runner import registered
from tests import factories as make
from tests.factories import fence_of, request_facts
from tests.support.job_transitions import adopted, bury_worker, recover
from tests.support.jobs import (
    calls_of,
    every_job_row,
    pass_queue_deadline,
    report_text,
    require_job_terminal,
)
from tests.support.runtimes import watch_database
from turns.models import Conversation, Message
from work.models import WorkJob, WorkProviderStep
from work.recovery import WorkRecovery
from work.transitions import (
    claim_job,
    finish_job,
    request_cancel,
    start_provider_step,
)

pytestmark = pytest.mark.django_db(transaction=True)


def events() -> list[tuple[Any, ...]]:
    told = RecoveryEvent.objects.filter(kind="work").order_by("pk")
    return list(told.values_list("row_id", "cause", "action", "error_code"))


def test_a_dead_workers_job_is_released_for_another(hints: list[int]) -> None:
    """behaviour O4"""
    job = make.WorkJobFactory.create(orphaned=True)
    owner, revision = job.owner, Conversation.objects.get().revision

    report = recover()

    assert (report.examined, report.adopted, report.interrupted) == (1, 1, 0)
    assert report.rows == [
        {"id": str(job.pk), "cause": "runtime_lost", "action": "adopted", "error_code": ""}
    ]
    job.refresh_from_db()
    assert (job.state, job.generation, job.owner, job.attempts) == ("queued", 2, None, 1)
    assert Conversation.objects.get().revision == revision + 1
    event = RecoveryEvent.objects.get()
    assert (event.generation, event.owner, event.action) == (1, owner, "adopted")
    assert hints == [job.pk]
    assert not Message.objects.exists()


def test_a_living_workers_job_is_left_alone(hints: list[int]) -> None:
    """behaviour O5"""
    make.WorkJobFactory.create(running=True)
    before = every_job_row()

    assert recover().examined == 0

    assert (every_job_row(), hints) == (before, [])


def test_a_second_recovery_changes_no_row(hints: list[int]) -> None:
    for cause in ("orphaned", "overdue"):
        job = make.WorkJobFactory.create(**{cause: True}, coding=True)
        make.WorkStepFactory.create(job=job)
        make.WorkStepFactory.create(job=job, provider_step__sequence=2, running=True)
        make.WorkProviderStepFactory.create(job=job)
    pass_queue_deadline(make.WorkJobFactory.create())
    pass_queue_deadline(make.WorkJobFactory.create(released=True))
    first = recover()
    before = every_job_row()

    second = recover()

    assert (first.examined, first.adopted, first.interrupted) == (4, 1, 3)
    assert (second.examined, second.changed_count) == (0, 0)
    assert every_job_row() == before
    assert len(hints) == 1


def test_three_adoptions_and_no_more(hints: list[int]) -> None:
    """failure H20: attempts are counted by the claim, before the work begins"""
    job = make.WorkJobFactory.create()
    claim_job(job.pk, owner=make.RuntimeFactory.create().pk)
    for adoption in range(1, ADOPTION_ATTEMPTS + 1):
        fence = adopted(job)
        start_provider_step(fence, request_facts())
        job.refresh_from_db()
        assert (job.attempts, job.generation) == (1 + adoption, 1 + 2 * adoption)
    deadline = job.deadline_at
    bury_worker(job)

    report = recover()

    assert report.interrupted == 1
    require_job_terminal(job)
    assert (job.state, job.error_code) == ("interrupted", "adoption_attempts_exhausted")
    assert job.deadline_at == deadline
    assert WorkProviderStep.objects.count() == 3
    assert "It was started 4 times." in report_text(job)
    assert claim_job(job.pk, owner=make.RuntimeFactory.create().pk) is None
    assert events()[-1][2:] == ("interrupted", "adoption_attempts_exhausted")
    assert recover().examined == 0


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({}, "never_started"),
        ({"coding": True}, "never_started"),
        ({"released": True}, "not_adopted"),
        ({"released": True, "coding": True}, "host_unavailable"),
    ],
    ids=["fresh", "fresh_coding", "released", "released_coding"],
)
def test_a_job_nobody_took_up_in_time_ends_honestly(job: dict[str, Any], code: str) -> None:
    """contract: if a worker cannot be started, an honest interrupted report"""
    waiting = make.WorkJobFactory.create(**job)
    pass_queue_deadline(waiting)

    report = recover()

    assert (report.interrupted, report.rows[0]["error_code"]) == (1, code)
    assert report.rows[0]["cause"] == ("not_adopted" if "released" in job else "never_started")
    require_job_terminal(waiting)
    assert (waiting.state, waiting.error_code) == ("interrupted", code)
    assert waiting.attempts == (1 if "released" in job else 0)
    assert ("It had not begun." in report_text(waiting)) == ("released" not in job)


def test_a_machine_that_is_there_is_not_said_to_have_stayed_away() -> None:
    waiting = make.WorkJobFactory.create(released=True, coding=True)
    make.RuntimeFactory.create(host_id=waiting.host_id, role="worker")
    pass_queue_deadline(waiting)

    assert recover().rows[0]["error_code"] == "not_adopted"


@pytest.mark.parametrize("state", ["overdue", "orphaned_late", "released_late"])
def test_a_job_whose_time_is_over_has_used_up_its_budget(state: str) -> None:
    past = Now() - timedelta(seconds=30)
    match state:
        case "overdue":  # its worker lives, and let the time pass
            job = make.WorkJobFactory.create(overdue=True)
        case "orphaned_late":
            job = make.WorkJobFactory.create(orphaned=True, deadline_at=past)
        case _:
            job = make.WorkJobFactory.create(
                released=True, deadline_at=past, queue_deadline_at=past
            )

    assert recover().interrupted == 1

    require_job_terminal(job)
    assert (job.state, job.error_code) == ("budget_exhausted", "deadline_passed")


def test_a_late_worker_cannot_go_on() -> None:
    job = make.WorkJobFactory.create(overdue=True)
    recover()
    before = every_job_row()
    with pytest.raises(StaleFence):
        finish_job(fence_of(job), WorkJob.State.COMPLETED)
    assert every_job_row() == before


def test_a_cancelled_jobs_dead_worker_is_not_replaced(hints: list[int]) -> None:
    """failure H21: a cancel while an attempt runs, and then its worker dies"""
    job = make.WorkJobFactory.create(running=True)
    request_cancel(job.person_id, job.pk)
    bury_worker(job)

    report = recover()

    assert (report.interrupted, report.rows[0]["error_code"]) == (1, "cancelled")
    require_job_terminal(job)
    assert (job.state, job.error_code, job.generation) == ("cancelled", "cancelled", 1)
    assert hints == []


def test_open_steps_end_or_wait_with_the_job() -> None:
    job = make.WorkJobFactory.create(orphaned=True)
    done = make.WorkStepFactory.create(job=job, succeeded=True)
    make.WorkStepFactory.create(job=job, provider_step=done.provider_step, running=True)
    waits = make.WorkStepFactory.create(job=job, provider_step=done.provider_step)
    asked = make.WorkProviderStepFactory.create(job=job)

    recover()

    assert calls_of(job) == [
        ("succeeded", ""),
        ("interrupted", "outcome_unknown"),
        ("requested", ""),
    ]
    waits.refresh_from_db()
    asked.refresh_from_db()
    assert waits.generation == 2
    assert (asked.state, asked.error_code, asked.usage) == ("interrupted", "runtime_lost", None)


def test_several_jobs_of_one_conversation_are_settled_together() -> None:
    first = make.WorkJobFactory.create(orphaned=True)
    second = make.WorkJobFactory.create(
        overdue=True, person=first.person, conversation=first.conversation
    )
    revision = Conversation.objects.get().revision

    recover()

    second.refresh_from_db()
    assert Conversation.objects.get().revision == revision + 1 == second.ended_revision


def test_a_dry_run_says_what_would_happen_and_changes_nothing(hints: list[int]) -> None:
    released = make.WorkJobFactory.create(orphaned=True)
    ended = make.WorkJobFactory.create(orphaned=True, attempts=4, generation=7)
    late = make.WorkJobFactory.create(overdue=True)
    before = every_job_row()

    report = WorkRecovery().settle_orphans(dry_run=True)

    shown = {row["id"]: (row["action"], row["error_code"]) for row in report.rows}
    assert shown == {
        str(released.pk): ("adopted", ""),
        str(ended.pk): ("interrupted", "adoption_attempts_exhausted"),
        str(late.pk): ("interrupted", "deadline_passed"),
    }
    assert (every_job_row(), hints) == (before, [])


def test_the_sweep_settles_jobs_and_buries_first(hints: list[int]) -> None:
    watch_database()
    dead = make.RuntimeFactory.create(lease_expires_at=Now() - timedelta(minutes=1))
    job = make.WorkJobFactory.create(running=True, runtime=dead)

    assert isinstance(registered()["work"], WorkRecovery)
    assert WorkRecovery().run().adopted == 1

    assert Runtime.objects.get(pk=dead.pk).stop_reason == "lease_expired"
    job.refresh_from_db()
    assert job.state == "queued"
    assert events() == [(job.pk, "lease_expired", "adopted", "")]
