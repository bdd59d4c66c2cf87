"""What a job asked of a provider and which tools it called, over all its generations."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.db.models import Q

from recovery.judges import Rules, fresh_rules, judges, move_rules
from recovery.triggers import (
    FENCE_NOT_PRESENTED,
    ConstantTrigger,
    changed,
    child_fence,
    goes_with_its_parent,
    in_states,
    refuse_update,
)
from turns import bounds as turn_bounds
from turns import lifecycles
from turns.models.steps import (
    PROVIDER_STEP_IDENTITY,
    TOOL_STEP_IDENTITY,
    ProviderStepFields,
    ToolStepFields,
)
from work import bounds
from work.models.jobs import WorkJob

_PROVIDER_STEP_SPOKEN: Final = ("failed", "interrupted")
_PROVIDER_STEP_RULES: Final[Rules] = {
    "response_id_bounded": (
        f"octet_length(NEW.response_id) > {turn_bounds.PROVIDER_ID_MAX_BYTES}"
    ),
    "usage_bounded": f"octet_length(NEW.usage::text) > {turn_bounds.USAGE_MAX_BYTES}",
    "text_bounded": f"octet_length(NEW.text) > {bounds.RESPONSE_TEXT_MAX_BYTES}",
    "anomalies_counted": "NEW.anomaly_count < 0",
}
_REPEATS_BOUNDED: Final = f"cardinality(NEW.repeats) > {bounds.TOOL_CALLS_HARD_STOP}"
_PROVIDER_STEP_FRESH: Final[Rules] = {
    **fresh_rules(lifecycles.PROVIDER_STEP, silent=["completed"], spoken=_PROVIDER_STEP_SPOKEN),
    **_PROVIDER_STEP_RULES,
    "repeats_bounded": _REPEATS_BOUNDED,
    "count_bounded": f"NEW.sequence NOT BETWEEN 1 AND {bounds.PROVIDER_STEPS_PER_JOB}",
    "bytes_counted": "NEW.request_bytes < 0",
}
_PROVIDER_STEP_MOVED: Final[Rules] = {
    **_PROVIDER_STEP_RULES,
    **move_rules(lifecycles.PROVIDER_STEP, silent=["completed"], spoken=_PROVIDER_STEP_SPOKEN),
}
_PROVIDER_STEP_FIXED: Final = ("id", "job_id", "generation", *PROVIDER_STEP_IDENTITY)
_STEP_SPOKEN: Final = ("failed", "refused", "unavailable", "interrupted")
_STEP_RULES: Final[Rules] = {
    "running_was_started": (
        f"{in_states('NEW', ['running', 'succeeded'])} AND NEW.started_at IS NULL"
    ),
    "result_bounded": f"""
        octet_length(NEW.result) > {turn_bounds.TOOL_RESULT_MAX_BYTES}
            OR NEW.result_bytes < 0""",
    "fence_presented": FENCE_NOT_PRESENTED,
}
_STEP_FRESH: Final[Rules] = {
    **fresh_rules(lifecycles.TOOL_STEP, silent=["succeeded"], spoken=_STEP_SPOKEN),
    **_STEP_RULES,
    "arguments_bounded": (
        f"octet_length(NEW.arguments) > {turn_bounds.TOOL_ARGUMENTS_MAX_BYTES}"
    ),
    "ids_bounded": f"""
        octet_length(NEW.call_id) > {turn_bounds.PROVIDER_ID_MAX_BYTES}
            OR octet_length(NEW.item_id) > {turn_bounds.PROVIDER_ID_MAX_BYTES}
            OR octet_length(NEW.name) > {turn_bounds.TOOL_NAME_MAX_BYTES}""",
    "count_bounded": f"NEW.sequence NOT BETWEEN 1 AND {bounds.TOOL_CALLS_HARD_STOP}",
}
_STEP_MOVED: Final[Rules] = {
    **_STEP_RULES,
    "fence": "NEW.write_mark = OLD.write_mark",
    **move_rules(lifecycles.TOOL_STEP, silent=["succeeded"], spoken=_STEP_SPOKEN),
}
_STEP_FIXED: Final = ("id", "job_id", *TOOL_STEP_IDENTITY)


class WorkProviderStep(ProviderStepFields):
    """A job's request to a model provider.

    `text` is what the response said beside its calls: an adopter builds the next request from
    it. A request that was under way when its worker died is `interrupted`, and its answer lost.
    """

    job = models.ForeignKey(
        WorkJob, on_delete=models.CASCADE, related_name="provider_steps", db_index=False
    )
    # what is negative the rules refuse: a CHECK of each would be read by each statement
    sequence = models.SmallIntegerField()
    request_bytes = models.IntegerField()
    anomaly_count = models.IntegerField(default=0)
    text = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "sequence"], name="work_workproviderstep_one_per_sequence"
            ),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(state="started"),
                name="work_workproviderstep_one_open_per_job",
            ),
            # what a step's provider step and job refer to together
            models.UniqueConstraint(fields=["id", "job"], name="work_workproviderstep_of_job"),
        ]
        triggers = [
            *judges(
                "work_workproviderstep",
                fresh=_PROVIDER_STEP_FRESH,
                moved=_PROVIDER_STEP_MOVED,
                kept={
                    "identity_is_fixed": changed(_PROVIDER_STEP_FIXED),
                    "repeats_bounded": _REPEATS_BOUNDED,
                },
                of=(*_PROVIDER_STEP_FIXED, "repeats"),
            ),
            child_fence(
                "work_workproviderstep",
                parent="work_workjob",
                parent_key="job_id",
                parent_states=["running"],
                kind=ConstantTrigger,
            ),
            goes_with_its_parent(
                "work_workproviderstep", parent="work_workjob", parent_key="job_id"
            ),
        ]

    def __str__(self) -> str:
        return f"provider step {self.pk}"


class WorkStep(ToolStepFields):
    """A tool call of a job.

    A call that was requested and not started outlives its worker: release and claim move it to
    the job's next generation, and the adopter starts it. One that was running ends interrupted.
    Like its job it carries a `write_mark`, so the database refuses who holds an older
    generation.
    """

    # in the database one foreign key is of both: `work_workstep_provider_step_of_job`
    job = models.ForeignKey(
        WorkJob,
        on_delete=models.CASCADE,
        related_name="steps",
        db_index=False,
        db_constraint=False,
    )
    provider_step = models.ForeignKey(
        WorkProviderStep, on_delete=models.CASCADE, related_name="steps", db_constraint=False
    )
    # as those of a provider step
    sequence = models.SmallIntegerField()
    result_bytes = models.BigIntegerField(default=0)
    write_mark = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "call_id"], name="work_workstep_one_per_call_id"
            ),
            models.UniqueConstraint(
                fields=["job", "sequence"], name="work_workstep_one_per_sequence"
            ),
        ]
        triggers = [
            *judges(
                "work_workstep",
                fresh=_STEP_FRESH,
                moved=_STEP_MOVED,
                kept={"identity_is_fixed": changed(_STEP_FIXED)},
                of=_STEP_FIXED,
            ),
            refuse_update(
                "work_workstep",
                "generation",
                "NEW.generation < OLD.generation OR (NEW.generation > OLD.generation "
                "AND NOT (OLD.state = 'requested' AND NEW.state = 'requested'))",
                of=["generation"],
            ),
            child_fence(
                "work_workstep",
                parent="work_workjob",
                parent_key="job_id",
                parent_states=["running"],
                kind=ConstantTrigger,
            ),
            goes_with_its_parent("work_workstep", parent="work_workjob", parent_key="job_id"),
        ]

    def __str__(self) -> str:
        return f"tool step {self.pk}"
