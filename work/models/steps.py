"""What a job asked of a provider and which tools it called, over all its generations."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from recovery.constraints import at_most, fence_presented
from recovery.triggers import (
    child_fence,
    child_row_triggers,
    in_states,
    refuse_change,
    refuse_update,
)
from turns import lifecycles
from turns.models.steps import (
    PROVIDER_STEP_IDENTITY,
    TOOL_STEP_IDENTITY,
    ProviderStepFields,
    ToolStepFields,
    provider_step_constraints,
    tool_step_constraints,
)
from work import bounds
from work.models.jobs import WorkJob


class WorkProviderStep(ProviderStepFields):
    """A job's request to a model provider.

    `text` is what the response said beside its calls: an adopter builds the next request from
    it. A request that was under way when its worker died is `interrupted`, and its answer lost.
    """

    job = models.ForeignKey(
        WorkJob, on_delete=models.CASCADE, related_name="provider_steps", db_index=False
    )
    text = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            *provider_step_constraints("work_workproviderstep"),
            models.CheckConstraint(
                condition=at_most("text", bounds.RESPONSE_TEXT_MAX_BYTES),
                name="work_workproviderstep_text_bounded",
            ),
            models.CheckConstraint(
                condition=Q(sequence__gte=1, sequence__lte=bounds.PROVIDER_STEPS_PER_JOB),
                name="work_workproviderstep_count_bounded",
            ),
            models.UniqueConstraint(
                fields=["job", "sequence"], name="work_workproviderstep_one_per_sequence"
            ),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(state="started"),
                name="work_workproviderstep_one_open_per_job",
            ),
        ]
        triggers = child_row_triggers(
            "work_workproviderstep",
            lifecycles.PROVIDER_STEP,
            fixed=["job_id", "generation", *PROVIDER_STEP_IDENTITY],
            parent="work_workjob",
            parent_key="job_id",
            parent_states=["running"],
        )

    def __str__(self) -> str:
        return f"provider step {self.pk}"


class WorkStep(ToolStepFields):
    """A tool call of a job.

    A call that was requested and not started outlives its worker: release and claim move it to
    the job's next generation, and the adopter starts it. One that was running ends interrupted.
    Like its job it carries a `write_mark`, so the database refuses who holds an older
    generation.
    """

    job = models.ForeignKey(
        WorkJob, on_delete=models.CASCADE, related_name="steps", db_index=False
    )
    provider_step = models.ForeignKey(
        WorkProviderStep, on_delete=models.CASCADE, related_name="steps"
    )
    write_mark = models.BigIntegerField()

    class Meta:
        constraints = [
            *tool_step_constraints("work_workstep"),
            fence_presented("work_workstep"),
            models.CheckConstraint(
                condition=Q(sequence__gte=1, sequence__lte=bounds.TOOL_CALLS_HARD_STOP),
                name="work_workstep_count_bounded",
            ),
            models.UniqueConstraint(
                fields=["job", "call_id"], name="work_workstep_one_per_call_id"
            ),
            models.UniqueConstraint(
                fields=["job", "sequence"], name="work_workstep_one_per_sequence"
            ),
        ]
        triggers = [
            refuse_update("work_workstep", "fence", "NEW.write_mark = OLD.write_mark"),
            refuse_update(
                "work_workstep",
                "generation",
                "NEW.generation < OLD.generation OR (NEW.generation > OLD.generation "
                "AND NOT (OLD.state = 'requested' AND NEW.state = 'requested'))",
                of=["generation"],
            ),
            refuse_update(
                "work_workstep", "moves", lifecycles.TOOL_STEP.violation_sql(), of=["state"]
            ),
            refuse_update(
                "work_workstep", "end_is_final", in_states("OLD", lifecycles.TOOL_STEP.terminal)
            ),
            refuse_change(
                "work_workstep", "identity_is_fixed", ["job_id", *TOOL_STEP_IDENTITY]
            ),
            child_fence(
                "work_workstep",
                parent="work_workjob",
                parent_key="job_id",
                parent_states=["running"],
            ),
        ]

    def __str__(self) -> str:
        return f"tool step {self.pk}"
