"""What a job says when it did not complete is so, whatever it had come to."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.blanks import BLANKS
from recovery.errors import ErrorCode
from tests import factories as make
from tests.factories import fence_of
from tests.support.jobs import report_text
from work.coding.changes import Commit
from work.coding.tools import branch
from work.models import WorkJob
from work.notices import read_last_words
from work.transitions import checkpoint_workspace, finish_job

pytestmark = pytest.mark.django_db

State = WorkJob.State

BASE = "0" * 40
NAME = "holdfast/job-1"
KEPT = (
    "What it had not committed is committed there as its working copy is taken down, if that "
    "is still to be had"
)


def ended(job: WorkJob, state: State, code: ErrorCode | None = None) -> list[str]:
    """End the job; return what it says of its place."""
    finish_job(fence_of(job), state, error_code=code)
    assert job.computer is not None
    before, where, after = report_text(job).partition(f" on {job.computer.name} with careful.")
    assert where
    return [before.split(". ")[-1], after.strip()]


@pytest.fixture
def job() -> WorkJob:
    return make.WorkJobFactory.create(coding=True, running=True, agent="careful")


def at_work(job: WorkJob, **call: Any) -> None:
    """Give the job a worktree, and a call of its model."""
    checkpoint_workspace(fence_of(job), BASE, NAME)
    asking = make.WorkProviderStepFactory.create(job=job, completed=True)
    if call:
        make.WorkStepFactory.create(job=job, provider_step=asking, **call)


@pytest.mark.parametrize("call", [{}, {"succeeded": True}, {"effect": "external"}])
def test_a_job_that_changed_nothing_names_no_branch(job: WorkJob, call: dict[str, Any]) -> None:
    at_work(job, **call)
    assert ended(job, State.FAILED, ErrorCode.PROVIDER_TIMEOUT) == [
        "It worked",
        "It changed nothing in the repository.",
    ]


def test_a_cancelled_job_that_only_read_names_no_branch() -> None:
    job = make.WorkJobFactory.create(coding=True, cancel_requested=True, agent="careful")
    at_work(job, succeeded=True)
    assert ended(job, State.CANCELLED) == ["It worked", "It changed nothing in the repository."]


@pytest.mark.parametrize(
    "call",
    [{"effect": "reversible", "succeeded": True}, {"effect": "external", "running": True}],
)
def test_a_job_that_may_have_changed_something_names_its_branch_and_where_it_began(
    job: WorkJob, call: dict[str, Any]
) -> None:
    at_work(job, **call)
    assert ended(job, State.INTERRUPTED, ErrorCode.RUNTIME_LOST) == [
        "It worked",
        f"Its branch is {NAME}, begun at {BASE}. {KEPT}; a branch on which nothing happened is "
        "removed.",
    ]


def test_a_job_whose_machine_stays_away_names_its_last_commit(job: WorkJob) -> None:
    at_work(job)
    asking = job.provider_steps.get()
    for digit in "ab":
        make.WorkStepFactory.create(
            job=job, provider_step=asking, succeeded=True, name="commit", effect="reversible",
            result=branch._told(Commit(digit * 40, ("x.py",)), NAME),
        )  # fmt: skip
    assert ended(job, State.INTERRUPTED, ErrorCode.HOST_UNAVAILABLE) == [
        "It worked",
        f"Its branch is {NAME}; its last commit there is {'b' * 40}. {KEPT}.",
    ]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.DIRECTORY_MISSING,
        ErrorCode.NOT_A_REPOSITORY,
        ErrorCode.REPOSITORY_EMPTY,
        ErrorCode.OUTSIDE_ROOTS,
    ],
)
def test_a_job_without_a_place_does_not_say_that_it_worked(
    job: WorkJob, code: ErrorCode
) -> None:
    assert ended(job, State.FAILED, code) == ["It was to work", ""]
    assert report_text(job).startswith(f"This job failed. {code.label} ")


def test_a_job_whose_worker_died_before_its_first_request_has_not_worked(job: WorkJob) -> None:
    checkpoint_workspace(fence_of(job), BASE, NAME)
    assert ended(job, State.INTERRUPTED, ErrorCode.RUNTIME_LOST) == [
        "It was to work",
        "It changed nothing in the repository.",
    ]


@pytest.mark.parametrize("blank", [BLANKS, *BLANKS, "\u200b", "\ufeff \u3164"])
def test_blanks_of_any_kind_are_no_last_words(job: WorkJob, blank: str) -> None:
    for sequence, text in enumerate(("Real words.", blank), 1):
        make.WorkProviderStepFactory.create(
            job=job, completed=True, sequence=sequence, text=text
        )
    assert read_last_words([job.pk]) == {job.pk: "Real words."}


@pytest.mark.parametrize("mark", ["\u200b", "\u180e", "\u3164", "\u2800"])
def test_what_nobody_sees_is_no_last_word(job: WorkJob, mark: str) -> None:
    for sequence in (1, 2):
        make.WorkProviderStepFactory.create(
            job=job, completed=True, sequence=sequence, text=mark
        )
    assert read_last_words([job.pk]) == {}
