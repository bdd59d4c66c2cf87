"""WorkRecovery: which jobs it takes up, what becomes of them, and that twice is once."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pgtrigger
import pytest
from django.db import connection
from django.db.models import Count, F
from django.db.models.functions import Now

from recovery.bounds import ADOPTION_ATTEMPTS
from recovery.errors import StaleFence
from recovery.models import RecoveryEvent, RecoveryFailure, Runtime
from recovery.reports import RecoveryReport
from recovery.runner import registered
from recovery.switches import State, set_release
from tests import factories as make
from tests.factories import fence_of, request_facts
from tests.support.job_transitions import adopted, bury_worker
from tests.support.jobs import (
    calls_of,
    every_job_row,
    pass_queue_deadline,
    report_text,
    require_job_terminal,
)
from tests.support.rivals import gate
from tests.support.runtimes import watch_database
from turns.models import Conversation, Message
from work.models import JobReport, WorkJob, WorkProviderStep
from work.recovery import HINTS_PER_SECOND, WorkRecovery
from work.transitions import (
    claim_job,
    finish_job,
    request_cancel,
    start_provider_step,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The hints that would have gone to the broker."""
    given: list[int] = []
    monkeypatch.setattr("work.recovery.dispatch_job", given.append)
    return given


def recover() -> RecoveryReport:
    return WorkRecovery().settle_orphans()


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


def test_waiting_jobs_are_hinted_at_again(hints: list[int]) -> None:
    due = make.WorkJobFactory.create(next_dispatch_at=Now())
    make.WorkJobFactory.create()

    report = recover()

    assert (report.redispatched, hints) == (1, [due.pk])
    due.refresh_from_db()
    assert due.dispatch_count == 1


def test_a_released_job_is_hinted_at_once_and_then_with_patience(hints: list[int]) -> None:
    job = make.WorkJobFactory.create(orphaned=True)
    recover()
    recover()
    assert hints == [job.pk]
    WorkJob.objects.update(next_dispatch_at=Now(), write_mark=F("write_mark") + 1)
    recover()
    assert hints == [job.pk, job.pk]


def test_while_work_is_disabled_orphans_are_released_and_nothing_is_hinted_again(
    hints: list[int],
) -> None:
    make.WorkJobFactory.create(next_dispatch_at=Now())
    make.WorkJobFactory.create(orphaned=True)
    set_release("work", State.DISABLED)

    report = recover()

    assert (report.adopted, report.redispatched) == (1, 0)


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


def test_of_many_jobs_that_wait_the_first_are_hinted_at(hints: list[int]) -> None:
    """Workers look for the others; no pass takes them up again at once."""
    jobs = make.WorkJobFactory.create_batch(HINTS_PER_SECOND + 1, next_dispatch_at=Now())

    assert recover().redispatched == len(jobs)

    assert hints == [job.pk for job in jobs[:HINTS_PER_SECOND]]
    assert set(WorkJob.objects.values_list("dispatch_count", flat=True)) == {1}


def test_batches_of_one_second_share_their_hints(
    hints: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 1_000.0
    monkeypatch.setattr("work.recovery.time", SimpleNamespace(monotonic=lambda: second))
    recovery = WorkRecovery()

    recovery.dispatch(range(HINTS_PER_SECOND - 1))
    recovery.dispatch(range(1_000, 2_000))
    assert hints == [*range(HINTS_PER_SECOND - 1), 1_000]

    second += 1
    recovery.dispatch([2_000])
    assert hints[-1] == 2_000


def test_jobs_are_taken_up_by_their_age_whoever_had_them(hints: list[int]) -> None:
    owners = [make.RuntimeFactory.create(lost=True) for _ in range(2)]
    jobs = [make.WorkJobFactory.create(running=True, runtime=owners[n % 2]) for n in range(4)]

    assert WorkRecovery().settle_orphans(limit=2).adopted == 2
    recover()

    assert hints == [job.pk for job in jobs]


def test_a_job_in_a_held_conversation_is_left_and_holds_up_no_other(
    hints: list[int], database_url: str
) -> None:
    left, other = make.WorkJobFactory.create_batch(2, orphaned=True)
    held = "SELECT FROM turns_conversation WHERE id = %s FOR NO KEY UPDATE"

    with gate(database_url, held, left.conversation_id):
        report = recover()

    assert (report.adopted, report.skipped, report.failed) == (1, 1, 0)
    assert hints == [other.pk]
    left.refresh_from_db()
    assert left.state == "running"
    assert recover().adopted == 1


# --- many, and one that cannot be settled -----------------------------------------------------


def poison(job: WorkJob) -> None:
    """Make the job one that no recovery can settle, as a fault of its row would."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE OR REPLACE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the words of a person'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER poison AFTER UPDATE ON work_workjob FOR EACH ROW "
            f"WHEN (NEW.id = {job.pk}) EXECUTE FUNCTION poison()"
        )


@pytest.fixture
def _antidote() -> Any:
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER IF EXISTS poison ON work_workjob")
        cursor.execute("DROP FUNCTION IF EXISTS poison")


@pytest.mark.usefixtures("_antidote")
def test_two_thousand_mixed_orphans_with_one_poison_row(hints: list[int]) -> None:
    """failure H05, for jobs: the bad row is reported and counted, the others are settled"""
    many_orphans(2_000)
    good = WorkJob.objects.filter(attempts=1, cancel_requested_at=None, deadline_at__gt=Now())
    bad = good.exclude(owner=WorkJob.objects.earliest("pk").owner).order_by("pk")[500]
    poison(bad)

    report = recover()

    assert (report.examined, report.failed) == (2_000, 1)
    assert (report.adopted, report.interrupted) == (999, 1_000)
    assert not report.all_settled
    failure = RecoveryFailure.objects.get()
    assert (failure.row_id, failure.failed_count) == (bad.pk, 1)
    assert "person" not in failure.reason
    bad.refresh_from_db()
    assert bad.state == "running"
    ended = WorkJob.objects.filter(state__in=sorted(WorkJob.LIFECYCLE.terminal))
    assert ended.count() == JobReport.objects.count() == Message.objects.count() == 1_000
    assert dict(ended.values_list("error_code").annotate(n=Count("pk"))) == {
        "cancelled": 400,
        "adoption_attempts_exhausted": 400,
        "deadline_passed": 200,
    }
    # of each second's the first; what is not hinted at is found by a look
    assert HINTS_PER_SECOND <= len(hints) < 999
    second = recover()
    # on a slow machine what was released five seconds ago is hinted at again
    assert (second.adopted, second.interrupted, second.failed) == (0, 0, 0)


def many_orphans(count: int) -> None:
    """Make jobs of dead workers: of ten, five to be adopted and five to end, with steps."""
    owner: UUID = make.RuntimeFactory.create(lost=True).pk
    person = make.UserFactory.create()
    template = make.WorkJobFactory.create(running=True, person=person)
    unqueued = pgtrigger.ignore("work.WorkJob:begins_queued")
    with unqueued, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO turns_conversation (owner_id, title, revision) "
            "SELECT %s, '', 1 FROM generate_series(1, %s) RETURNING id",
            [person.pk, count],
        )
        conversations = [pk for (pk,) in cursor.fetchall()]
        cursor.execute(
            """
            INSERT INTO work_workjob SELECT (jsonb_populate_record(t, jsonb_build_object(
                'id', nextval(pg_get_serial_sequence('work_workjob', 'id')),
                'conversation_id', c.id, 'owner', %s, 'generation', 7, 'attempts',
                CASE WHEN c.n %% 10 IN (5, 6) THEN 4 ELSE 1 END,
                'write_mark', 7::bigint << 32,
                'cancel_requested_at', CASE WHEN c.n %% 10 IN (7, 8) THEN now() END,
                'deadline_at', now() + CASE c.n %% 10 WHEN 9 THEN interval '-1 h'
                    ELSE interval '1 h' END))).*
            FROM work_workjob t, unnest(%s::bigint[]) WITH ORDINALITY AS c(id, n)
            WHERE t.id = %s RETURNING id
            """,
            [owner, conversations, template.pk],
        )
        jobs = sorted(pk for (pk,) in cursor.fetchall())
        cursor.execute(
            """
            INSERT INTO work_workproviderstep (job_id, generation, sequence, state, error_code,
                model, request_digest, request_bytes, offers_tools, anomaly_count, text,
                finished_at)
            SELECT id, 7, s, CASE s WHEN 1 THEN 'completed' ELSE 'started' END, '', 'm', 'd', 1,
                true, 0, '', CASE s WHEN 1 THEN now() END
            FROM unnest(%s::bigint[]) AS id, generate_series(1, 2) AS s
            """,
            [jobs],
        )
        cursor.execute(
            """
            INSERT INTO work_workstep (job_id, provider_step_id, generation, write_mark,
                sequence, state, error_code, call_id, item_id, name, effect, arguments,
                arguments_digest, invocation_key, result, result_digest, result_bytes,
                started_at)
            SELECT p.job_id, p.id, 7, 7::bigint << 32, s,
                CASE s WHEN 1 THEN 'requested' ELSE 'running' END, '', 'call-' || s, '', 'tool',
                'read', '', 'd', gen_random_uuid(), '', '', 0, CASE s WHEN 2 THEN now() END
            FROM work_workproviderstep p, generate_series(1, 2) AS s WHERE p.state = 'completed'
            """
        )
