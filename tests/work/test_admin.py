"""What an operator sees of a job: everything that happened, nothing that was said."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from recovery.models import RecoveryEvent, Runtime
from tests import factories as make
from tests.support.runtimes import watch_database
from turns.digests import digest
from work.models import Computer, JobReport, WorkJob, WorkProviderStep, WorkStep

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "a very private sentence"
PAGES = ("workjob", "jobreport", "computer")


@pytest.fixture
def staff(client: Client) -> Client:
    client.force_login(make.UserFactory.create(is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def job() -> WorkJob:
    """A coding job with words of the person and the model in every place for them."""
    job = make.WorkJobFactory.create(
        coding=True, running=True, goal=SECRET, context=SECRET, prompt=SECRET
    )
    make.WorkProviderStepFactory.create(job=job, completed=True, text=SECRET)
    make.WorkStepFactory.create(
        job=job, succeeded=True, arguments=f'{{"q": "{SECRET}"}}', result=SECRET, name="edit"
    )
    make.JobReportFactory.create(job=job, text=SECRET)
    WorkJob.objects.filter(pk=job.pk).update(
        acp_session_id=SECRET,
        branch="holdfast/job-1",
        base_commit="c0ffee",
        write_mark=job.write_mark + 1,
    )
    return job


def pages(job: WorkJob) -> dict[str, int]:
    """Return a row of each page."""
    assert job.computer_id is not None
    return {
        "workjob": job.pk,
        "jobreport": JobReport.objects.get(job=job).pk,
        "computer": job.computer_id,
    }


def shown(staff: Client, name: str, pk: int) -> str:
    response = staff.get(reverse(f"admin:work_{name}_change", args=[pk]))
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.parametrize("name", PAGES)
def test_lists_and_pages_show_no_content(staff: Client, job: WorkJob, name: str) -> None:
    listed = staff.get(reverse(f"admin:work_{name}_changelist"))
    assert listed.status_code == 200
    assert SECRET not in listed.content.decode()
    assert SECRET not in shown(staff, name, pages(job)[name])


def test_a_jobs_page_shows_sizes_digests_steps_authority_and_timeline(
    staff: Client, job: WorkJob
) -> None:
    page = shown(staff, "workjob", job.pk)

    assert page.count(f"{len(SECRET)} bytes, {digest(SECRET)}") == 4
    for words in (
        "admitted",
        f"claimed by {job.owner}, generation 1",
        "provider step 1 started, generation 1, 1 byte sent",
        "tool step 1 (edit) succeeded",
        f"result written, generation 1, {len(SECRET)} bytes",
        "worktree of branch holdfast/job-1, from commit c0ffee",
        "external session kept",
        "/srv/projects",
        "curated",
    ):
        assert words in page


def test_a_computers_page_shows_its_roots_and_checks(staff: Client, job: WorkJob) -> None:
    page = shown(staff, "computer", pages(job)["computer"])
    assert "/srv/projects" in page
    assert "script/test" in page


@pytest.mark.parametrize("name", PAGES)
def test_nothing_can_be_changed_added_or_deleted(
    staff: Client, job: WorkJob, name: str
) -> None:
    pk = pages(job)[name]
    before = every_row()
    page = reverse(f"admin:work_{name}_change", args=[pk])
    said: dict[str, Any] = {"state": "completed", "goal": "x", "tier": "shell", "text": "x"}

    assert staff.post(page, said).status_code == 403
    assert staff.get(reverse(f"admin:work_{name}_add")).status_code == 403
    assert staff.post(reverse(f"admin:work_{name}_add"), said).status_code == 403
    deleting = reverse(f"admin:work_{name}_delete", args=[pk])
    assert staff.post(deleting, {"post": "yes"}).status_code == 403
    staff.post(
        reverse(f"admin:work_{name}_changelist"),
        {"action": "delete_selected", "_selected_action": str(pk), "post": "yes"},
    )
    assert every_row() == before


def every_row() -> list[tuple[str, ...]]:
    """Return each row of jobs and all they consist of, with the transaction that wrote it."""
    rows: list[tuple[str, ...]] = []
    with connection.cursor() as cursor:
        for model in (Computer, WorkJob, WorkProviderStep, WorkStep, JobReport):
            table = model._meta.db_table
            cursor.execute(f"SELECT t.xmin::text, t::text FROM {table} t ORDER BY t.id")
            rows += cursor.fetchall()
    return rows


def test_the_list_is_filtered_by_state_kind_and_code(staff: Client, job: WorkJob) -> None:
    other = make.WorkJobFactory.create(failed=True)
    listed = reverse("admin:work_workjob_changelist")
    for query, expected in (
        ({"state__exact": "running"}, {job.pk}),
        ({"kind__exact": "deep_work"}, {other.pk}),
        ({"error_code__exact": "provider_unavailable"}, {other.pk}),
        ({"q": str(job.pk)}, {job.pk}),
        ({"q": other.person.username}, {other.pk}),
        ({}, {job.pk, other.pk}),
    ):
        page = staff.get(listed, query).content.decode()
        found = {int(pk) for pk in re.findall(r"/admin/work/workjob/(\d+)/change/", page)}
        assert (query, found) == (query, expected)


def test_the_list_shows_each_jobs_code_as_commands_and_logs_say_it(staff: Client) -> None:
    make.WorkJobFactory.create(interrupted=True)
    page = staff.get(reverse("admin:work_workjob_changelist")).content.decode()
    assert '<td class="field-code">adoption_attempts_exhausted</td>' in page


def test_a_list_costs_the_same_queries_however_long_it_is(staff: Client) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            staff.get(reverse("admin:work_workjob_changelist"))
        return len(queries)

    make.WorkJobFactory.create(coding=True, running=True)
    few = cost()
    make.WorkJobFactory.create_batch(5, coding=True, running=True)
    assert cost() == few


def test_a_jobs_page_shows_no_more_steps_than_a_job_may_have(staff: Client) -> None:
    """The database bounds them; the inlines say the same."""
    job = make.WorkJobFactory.create(running=True)
    step = make.WorkProviderStepFactory.create(job=job, completed=True)
    make.WorkStepFactory.create_batch(128, job=job, provider_step=step)
    page = shown(staff, "workjob", job.pk)
    assert page.count("(search_history) requested") == 128


def test_the_one_action_recovers_as_the_command_does(staff: Client) -> None:
    watch_database()
    job = make.WorkJobFactory.create(orphaned=True)
    action = {"action": "run_recovery", "_selected_action": str(job.pk)}

    response = staff.post(reverse("admin:work_workjob_changelist"), action, follow=True)

    assert "Work: 1 examined, 1 adopted" in response.content.decode()
    job.refresh_from_db()
    assert (job.state, job.generation, job.owner) == ("queued", 2, None)
    assert RecoveryEvent.objects.get().row_id == job.pk


def test_recovery_is_for_those_who_were_given_it(client: Client) -> None:
    watch_database()
    person = make.UserFactory.create(is_staff=True)
    person.user_permissions.add(Permission.objects.get(codename="view_workjob"))
    client.force_login(person)
    job = make.WorkJobFactory.create(orphaned=True)
    action = {"action": "run_recovery", "_selected_action": str(job.pk)}
    listed = reverse("admin:work_workjob_changelist")

    assert "run_recovery" not in client.get(listed).content.decode()
    client.post(listed, action)
    job.refresh_from_db()
    assert job.state == "running"

    person.user_permissions.add(Permission.objects.get(codename="run_recovery"))
    client.post(listed, action)
    job.refresh_from_db()
    assert job.state == "queued"
    assert Runtime.objects.living().count() == 0
