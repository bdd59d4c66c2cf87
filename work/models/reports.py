"""What a job says in the end, and where the conversation shows it."""

from __future__ import annotations

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from recovery.constraints import at_most
from recovery.triggers import ConstantTrigger, child_fence, refuse, refuse_change
from turns.digests import DIGEST_CHARS
from turns.models import Message
from work import bounds
from work.models.jobs import WorkJob


class JobReport(models.Model):
    """A job's last words. Written once, under the job's generation, before the job ends.

    A `result` is the worker's own report. A `notice` is ours: it says honestly how a job ended
    that did not complete. A job that was cancelled after its result was written has both, and
    shows the notice.
    """

    class Kind(models.TextChoices):
        RESULT = "result"
        NOTICE = "notice"

    job = models.ForeignKey(
        WorkJob, on_delete=models.CASCADE, related_name="reports", db_index=False
    )
    generation = models.IntegerField()
    kind = models.CharField(max_length=16, choices=Kind.choices)
    text = models.TextField()
    # size before any cut
    byte_count = models.PositiveIntegerField()
    digest = models.CharField(max_length=DIGEST_CHARS)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=["result", "notice"]), name="work_jobreport_kind_known"
            ),
            models.CheckConstraint(
                condition=at_most("text", bounds.REPORT_MAX_BYTES) & ~Q(text=""),
                name="work_jobreport_text_bounded",
            ),
            models.UniqueConstraint(fields=["job", "kind"], name="work_jobreport_one_per_kind"),
        ]
        triggers = [
            child_fence(
                "work_jobreport",
                parent="work_workjob",
                parent_key="job_id",
                parent_states=["queued", "running"],
                kind=ConstantTrigger,
            ),
            pgtrigger.Trigger(
                name="is_final",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                func=refuse("work_jobreport_is_final"),
            ),
        ]

    def __str__(self) -> str:
        return f"report {self.pk}"


class JobReportMessage(models.Model):
    """Which message of the conversation shows a report.

    Removing the message removes this and the report with it: nothing it said stays behind.
    """

    report = models.OneToOneField(JobReport, on_delete=models.CASCADE, related_name="shown_by")
    message = models.OneToOneField(Message, on_delete=models.CASCADE, related_name="+")

    class Meta:
        triggers = [
            refuse_change(
                "work_jobreportmessage", "identity_is_fixed", ["report_id", "message_id"]
            ),
            # neither of them ever changes its conversation
            ConstantTrigger(
                name="in_its_conversation",
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                func=f"""
                    IF NOT EXISTS (
                        SELECT FROM work_jobreport r JOIN work_workjob j ON j.id = r.job_id
                            JOIN turns_message m ON m.id = NEW.message_id
                        WHERE r.id = NEW.report_id AND m.conversation_id = j.conversation_id
                    ) THEN {refuse("work_jobreportmessage_in_its_conversation")} END IF;
                    RETURN NULL;
                """,
            ),
            pgtrigger.Trigger(
                name="takes_its_report_along",
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                func="DELETE FROM work_jobreport WHERE id = OLD.report_id; RETURN NULL;",
            ),
        ]

    def __str__(self) -> str:
        return f"message {self.message_id} of report {self.report_id}"
