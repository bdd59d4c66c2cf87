"""A job's children are let in while it runs, under its generation."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Model

from recovery.constraints import violated_constraint
from tests import factories as make
from work.models import WorkJob

pytestmark = pytest.mark.django_db

CHILDREN: Final[dict[str, Any]] = {
    "workproviderstep": make.WorkProviderStepFactory,
    "workstep": make.WorkStepFactory,
    "jobreport": make.JobReportFactory,
}
ENDS: Final = ("completed", "failed", "cancelled", "interrupted", "budget_exhausted")


def claimed_twice() -> WorkJob:
    return make.WorkJobFactory.create(running=True, generation=2)


def ended_step() -> Model:
    return make.WorkProviderStepFactory.create(completed=True)


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("parent", ["queued", "released", *ENDS])
def test_a_child_cannot_be_born_under_a_job_that_does_not_run(child: str, parent: str) -> None:
    job = make.WorkJobFactory.create(**({} if parent == "queued" else {parent: True}))
    extra: dict[str, Any] = {}
    if child == "workstep":
        extra = {"provider_step": ended_step(), "sequence": 1}
    if child == "jobreport" and parent in {"queued", "released"}:
        # the notice of a job that nobody took up is written before it ends
        make.JobReportFactory.create(job=job, notice=True)
        return

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        CHILDREN[child].create(job=job, **extra)

    assert violated_constraint(refused.value) == f"work_{child}_child_fence"


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("generation", [1, 3])
def test_a_child_carries_the_generation_of_its_job(child: str, generation: int) -> None:
    job = claimed_twice()
    extra: dict[str, Any] = {}
    if child == "workstep":
        step = make.WorkProviderStepFactory.create(job=job, completed=True)
        extra = {"provider_step": step}

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        CHILDREN[child].create(job=job, generation=generation, **extra)

    assert violated_constraint(refused.value) == f"work_{child}_child_fence"
