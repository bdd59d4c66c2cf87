"""What the rows of a job belong to, and what leaves with what: the database keeps count."""

from __future__ import annotations

from itertools import permutations
from typing import Final

import pytest
from django.db import IntegrityError, connection, transaction

from recovery.constraints import violated_constraint
from tests import factories as make
from tests.factories import fence_of
from tests.support.rules import another, at_once, refusal_of
from work.models import JobReport, WorkJob, WorkStep
from work.transitions import finish_job

pytestmark = pytest.mark.django_db


def test_a_job_is_of_the_owner_of_its_conversation() -> None:
    """Composite ownership: neither by ORM nor behind its back."""
    elsewhere = make.ConversationFactory.create()

    with pytest.raises(IntegrityError) as refused, transaction.atomic(), at_once():
        make.WorkJobFactory.create(conversation=elsewhere)

    assert violated_constraint(refused.value) == "work_workjob_conversation_of_person"


def test_a_job_on_another_persons_computer_cannot_be_inserted() -> None:
    """behaviour O13"""
    theirs = make.ComputerFactory.create()

    with pytest.raises(IntegrityError) as refused, transaction.atomic(), at_once():
        make.WorkJobFactory.create(coding=True, computer=theirs)

    assert violated_constraint(refused.value) == "work_workjob_computer_of_person"


def test_a_job_on_a_revoked_computer_cannot_be_inserted() -> None:
    person = make.UserFactory.create()
    revoked = make.ComputerFactory.create(person=person, revoked=True)

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        make.WorkJobFactory.create(coding=True, person=person, computer=revoked)

    assert violated_constraint(refused.value) == "work_workjob_authority_is_the_computers"


@pytest.mark.parametrize("column", ["conversation_id", "person_id"])
def test_a_job_is_of_somebody_and_of_a_conversation_that_exist(column: str) -> None:
    job = make.WorkJobFactory.create()

    with at_once():
        refusal = refusal_of(another(WorkJob, **{column: "0"}).format(pk=job.pk))

    assert refusal == "work_workjob_conversation_of_person"


@pytest.mark.parametrize(
    ("table", "refused_by"),
    [
        ("turns_conversation", "work_workjob_conversation_of_person"),
        ("work_computer", "work_workjob_computer_of_person"),
        # who has a job has its conversation
        ("auth_user", "turns_conversation_owner_id_"),
    ],
)
def test_what_a_job_belongs_to_does_not_go_without_it(table: str, refused_by: str) -> None:
    job = make.WorkJobFactory.create(coding=True)
    pk = {
        "turns_conversation": job.conversation_id,
        "work_computer": job.computer_id,
        "auth_user": job.person_id,
    }[table]

    with at_once():
        refusal = refusal_of(f"DELETE FROM {table} WHERE id = {pk}")

    assert refusal.startswith(refused_by)


STEP: Final = """
    INSERT INTO work_workstep (job_id, provider_step_id, generation, write_mark, sequence,
        state, error_code, call_id, item_id, name, effect, arguments, arguments_digest,
        invocation_key, result, result_digest, result_bytes)
    VALUES ({job}, {step}, 1, 1::bigint << 32, 1, 'requested', '', 'call', '', 'tool', 'read',
        '{{}}', 'digest', gen_random_uuid(), '', '', 0)
"""


@pytest.mark.parametrize("whose", ["of another job", "of nobody"])
def test_a_step_is_of_a_provider_step_of_its_own_job(whose: str) -> None:
    own = make.WorkProviderStepFactory.create(completed=True)
    other = make.WorkProviderStepFactory.create(completed=True).pk
    named = other if whose == "of another job" else 0

    with at_once():
        refusal = refusal_of(STEP.format(job=own.job_id, step=named))

    assert refusal == "work_workstep_provider_step_of_job"
    connection.cursor().execute(STEP.format(job=own.job_id, step=own.pk))
    connection.check_constraints()


@pytest.mark.parametrize(
    ("table", "refused_by"),
    [
        ("work_workproviderstep", "work_workstep_provider_step_of_job"),
        # a job with a step has the provider step as well
        ("work_workjob", "work_workproviderstep_job_id_"),
    ],
)
def test_what_a_step_belongs_to_does_not_go_without_it(table: str, refused_by: str) -> None:
    make.WorkStepFactory.create()

    with at_once():
        refusal = refusal_of(f"DELETE FROM {table}")

    assert refusal.startswith(refused_by)


ROWS_OF_A_JOB: Final = ("work_workstep", "work_workproviderstep", "work_workjob")


@pytest.mark.parametrize("order", [*permutations(ROWS_OF_A_JOB)])
def test_the_rows_of_a_job_leave_in_any_order_within_a_transaction(
    order: tuple[str, ...],
) -> None:
    make.WorkStepFactory.create()
    connection.check_constraints()

    with connection.cursor() as cursor:
        for table in order:
            cursor.execute(f"DELETE FROM {table}")

    connection.check_constraints()


@pytest.mark.parametrize("record", ["workproviderstep", "workstep"])
@pytest.mark.parametrize("state", ["running", "completed"])
def test_what_a_job_did_is_removed_with_the_job_alone(record: str, state: str) -> None:
    """An adopter would do it again."""
    call = make.WorkStepFactory.create(succeeded=True)
    answer = make.WorkProviderStepFactory.create(job=call.job, sequence=2, completed=True)
    rows = {"workproviderstep": answer, "workstep": call}
    if state == "completed":
        finish_job(fence_of(call.job), WorkJob.State.COMPLETED)

    refusal = refusal_of(
        f"DELETE FROM work_{record} WHERE id = {rows[record].pk}; SET CONSTRAINTS ALL IMMEDIATE"
    )

    assert refusal == f"work_{record}_goes_with_its_parent"


@pytest.mark.parametrize("removed", ["job", "conversation", "person"])
def test_removing_takes_along_what_belonged_to_it(removed: str) -> None:
    """By the ORM, of a job on a computer with two responses and their calls."""
    job = make.WorkJobFactory.create(coding=True, running=True)
    for _ in range(2):
        step = make.WorkProviderStepFactory.create(job=job, completed=True)
        make.WorkStepFactory.create_batch(2, job=job, provider_step=step)
    make.JobReportFactory.create(job=job)
    kept = make.WorkStepFactory.create()
    connection.check_constraints()

    {
        "job": job,
        "conversation": job.conversation,
        "person": job.person,
    }[removed].delete()

    connection.check_constraints()
    assert [*WorkStep.objects.values_list("pk", flat=True)] == [kept.pk]
    assert not WorkJob.objects.filter(pk=job.pk).exists()


def test_a_job_keeps_its_owner_when_its_conversation_or_computer_would_change_hands() -> None:
    job = make.WorkJobFactory.create(coding=True)
    other = make.UserFactory.create()
    for table, column in (("turns_conversation", "owner_id"), ("work_computer", "person_id")):
        with pytest.raises(IntegrityError), transaction.atomic():
            connection.cursor().execute(f"UPDATE {table} SET {column} = %s", [other.pk])
    job.refresh_from_db()
    assert job.conversation.owner_id == job.person_id


def test_removing_the_message_removes_what_the_report_said() -> None:
    shown = make.JobReportMessageFactory.create()

    shown.message.delete()

    assert not JobReport.objects.exists()
