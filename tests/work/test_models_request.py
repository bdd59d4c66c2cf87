"""The delegation request never changes, whoever tries; a checkpoint is its owner's alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import F
from django.test import Client
from django.urls import reverse

from recovery.constraints import violated_constraint
from recovery.errors import StaleFence
from recovery.fences import NEXT_MARK_SQL, Fence
from tests import factories as make
from tests.factories import fence_of
from work.models import WorkJob
from work.models.jobs import REQUEST
from work.recovery import WorkRecovery
from work.transitions import checkpoint_session, checkpoint_workspace, claim_job, finish_job

pytestmark = pytest.mark.django_db

# Another value for each part of the request, in SQL.
OTHERS: Final[dict[str, str]] = {
    "id": "-id",
    "person_id": "person_id + 1",
    "conversation_id": "conversation_id + 1",
    "kind": "'computer'",
    "goal": "'Do something else.'",
    "context": "'other'",
    "prompt": "'Do something else.'",
    "computer_id": "computer_id + 1",
    "agent": "'other'",
    "cwd": "'/'",
    "host_id": "'other-host'",
    "model": "'other'",
    "wall_clock_seconds": "9999",
    "authority": """jsonb_set(authority, '{tier}', '"shell"')""",
    "budget": "jsonb_set(budget, '{tool_calls}', '9999')",
    "before_message_id": "before_message_id + 1",
    "client_key": "'other'",
    "request_digest": "'other'",
    "created_at": "created_at + interval '1 s'",
}
IMMUTABLE: Final = "work_workjob_admission_is_immutable"
CHECKPOINT: Final = "work_workjob_checkpoint_is_the_owners"


@pytest.fixture(params=["queued", "running", "released"])
def job(request: pytest.FixtureRequest) -> WorkJob:
    state = {} if request.param == "queued" else {request.param: True}
    return make.WorkJobFactory.create(coding=True, **state)


@contextmanager
def savepoint() -> Iterator[CursorWrapper]:
    """Undo what was refused, and go on."""
    with transaction.atomic(), connection.cursor() as cursor:
        yield cursor


def rows() -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin::text, j::text FROM work_workjob j ORDER BY id")
        return cursor.fetchall()


def refused(error: pytest.ExceptionInfo[IntegrityError]) -> str:
    return violated_constraint(error.value)


def test_every_part_of_the_request_is_named_here() -> None:
    assert set(OTHERS) == set(REQUEST)


@pytest.mark.parametrize("column", REQUEST)
def test_raw_sql_cannot_change_the_request(job: WorkJob, column: str) -> None:
    """behaviour O11"""
    before = rows()

    with pytest.raises(IntegrityError) as error, savepoint() as cursor:
        cursor.execute(
            f"UPDATE work_workjob SET {column} = {OTHERS[column]}, write_mark = {NEXT_MARK_SQL}"
        )

    assert refused(error) == IMMUTABLE
    assert rows() == before


def test_a_queryset_cannot_change_the_request(job: WorkJob) -> None:
    jobs = WorkJob.objects.filter(pk=job.pk)
    before = rows()

    with pytest.raises(IntegrityError) as error, savepoint():
        jobs.update(prompt="Do something else.", write_mark=F("write_mark") + 1)

    assert refused(error) == IMMUTABLE
    assert rows() == before


@pytest.mark.parametrize("fields", [["goal", "write_mark"], None])
def test_a_model_cannot_save_another_request(job: WorkJob, fields: list[str] | None) -> None:
    before = rows()
    job.goal = "Do something else."
    job.write_mark += 1

    with pytest.raises(IntegrityError) as error, savepoint():
        job.save(update_fields=fields)

    assert refused(error) == IMMUTABLE
    assert rows() == before


def test_nobody_can_change_a_request_in_the_admin(job: WorkJob, client: Client) -> None:
    root = User.objects.create(username="root", is_staff=True, is_superuser=True)
    client.force_login(root)
    before = rows()
    page = reverse("admin:work_workjob_change", args=[job.pk])

    assert not admin.site._registry[WorkJob].has_change_permission(
        client.get(page).wsgi_request
    )
    answer = client.post(page, {"goal": "Do something else."})

    assert answer.status_code == 403
    assert rows() == before


def test_the_live_generation_stores_its_checkpoint() -> None:
    """behaviour O10"""
    job = make.WorkJobFactory.create(running=True)

    checkpoint_session(fence_of(job), "session", 7)
    checkpoint_workspace(fence_of(job), "c0ffee", "holdfast/job")

    job.refresh_from_db()
    assert (job.acp_session_id, job.acp_cursor) == ("session", 7)
    assert (job.base_commit, job.branch) == ("c0ffee", "holdfast/job")


def test_an_adopter_has_the_workspace_that_was_written_first() -> None:
    """The commit and the branch that the work began on are where it goes on."""
    job = make.WorkJobFactory.create(orphaned=True)
    checkpoint_workspace(fence_of(job), "c0ffee", "holdfast/job")
    WorkRecovery().settle_orphans()
    adopter = claim_job(job.pk, owner=make.RuntimeFactory.create().pk)
    assert adopter is not None

    checkpoint_workspace(adopter, "c0ffee", "holdfast/job")
    for base_commit, branch in (("badc0de", "holdfast/job"), ("c0ffee", "another")):
        with pytest.raises(IntegrityError) as error, savepoint():
            checkpoint_workspace(adopter, base_commit, branch)
        assert refused(error) == "work_workjob_workspace_is_fixed"

    job.refresh_from_db()
    assert (job.base_commit, job.branch) == ("c0ffee", "holdfast/job")


def test_an_older_generation_stores_no_checkpoint() -> None:
    """behaviour O10"""
    job = make.WorkJobFactory.create(running=True, generation=2, acp_session_id="session")
    older = Fence(job.pk, 1, fence_of(job).token)
    before = rows()

    with pytest.raises(StaleFence):
        checkpoint_session(older, "another", 1)
    with pytest.raises(StaleFence):
        checkpoint_workspace(older, "badc0de", "another")

    assert rows() == before


def test_after_the_end_nobody_stores_a_checkpoint() -> None:
    """behaviour O10"""
    job = make.WorkJobFactory.create(running=True, acp_session_id="session")
    finish_job(fence_of(job), WorkJob.State.COMPLETED)
    before = rows()

    with pytest.raises(StaleFence):
        checkpoint_session(fence_of(job), "another", 1)

    assert rows() == before


def test_between_release_and_claim_nobody_stores_a_checkpoint() -> None:
    job = make.WorkJobFactory.create(orphaned=True, acp_session_id="session")
    old = fence_of(job)
    WorkRecovery().settle_orphans()
    before = rows()

    with pytest.raises(StaleFence):
        checkpoint_session(old, "another", 1)
    with pytest.raises(IntegrityError) as error, savepoint() as cursor:
        cursor.execute(
            f"UPDATE work_workjob SET acp_session_id = 'another', write_mark = {NEXT_MARK_SQL}"
        )

    assert refused(error) == CHECKPOINT
    assert rows() == before


def test_the_adopter_finds_the_checkpoint_and_moves_it_on() -> None:
    job = make.WorkJobFactory.create(orphaned=True, acp_session_id="session", acp_cursor=3)
    old = fence_of(job)
    WorkRecovery().settle_orphans()
    adopter = claim_job(job.pk, owner=make.RuntimeFactory.create().pk)
    assert adopter is not None

    job.refresh_from_db()
    assert (job.acp_session_id, job.acp_cursor) == ("session", 3)
    checkpoint_session(adopter, "session", 4)
    with pytest.raises(StaleFence):
        checkpoint_session(old, "session", 99)
    job.refresh_from_db()
    assert job.acp_cursor == 4


@pytest.mark.parametrize(
    "written",
    [
        "acp_session_id = 'stolen'",
        "state = 'completed', finished_at = now()",
        "base_commit = 'badc0de'",
        "deadline_at = deadline_at",
    ],
)
@pytest.mark.parametrize("adopted", [False, True])
def test_a_stale_writer_is_refused_with_its_own_old_mark(written: str, adopted: bool) -> None:
    """failure H11: by raw SQL, before and after another has adopted the job"""
    job = make.WorkJobFactory.create(orphaned=True)
    mark = job.write_mark + 1
    WorkRecovery().settle_orphans()
    if adopted:
        claim_job(job.pk, owner=make.RuntimeFactory.create().pk)
    before = rows()

    with pytest.raises(IntegrityError) as error, savepoint() as cursor:
        cursor.execute(f"UPDATE work_workjob SET {written}, write_mark = %s", [mark])

    assert refused(error) == "work_workjob_fence_presented"
    assert rows() == before
