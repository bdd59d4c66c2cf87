"""WorkRecovery: of many orphans one that cannot be settled, or is held, holds up no other."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pgtrigger
import pytest
from django.db import connection
from django.db.models import Count
from django.db.models.functions import Now

from recovery.models import RecoveryFailure
from tests import factories as make
from tests.support.job_transitions import recover
from tests.support.rivals import gate
from turns.models import Message
from work.models import JobReport, WorkJob
from work.recovery import HINTS_PER_SECOND

pytestmark = pytest.mark.django_db(transaction=True)


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
