"""What a job reports: written once, before the job ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import transaction

from recovery.bounds import cut_utf8, storable
from recovery.errors import ErrorCode, IllegalTransition, Refused
from recovery.fences import Fence
from turns.digests import digest
from work.limits import JobLimits
from work.models import JobReport
from work.transitions.locks import lock_owned

CUT_MARK: Final = "\n[cut: the report was {bytes} bytes]"


@dataclass(frozen=True, slots=True)
class BoundedReport:
    """What is kept of a report, its digest, and the size of the whole."""

    text: str
    digest: str
    bytes: int


def bounded_report(text: str, limit_bytes: int) -> BoundedReport:
    """Return the report as it can be stored: within its bound, or cut with a mark."""
    text = storable(text).strip()
    size = len(text.encode())
    if size > limit_bytes:
        mark = CUT_MARK.format(bytes=size)
        text = cut_utf8(text, limit_bytes - len(mark)) + mark
    return BoundedReport(text, digest(text), size)


@transaction.atomic(durable=True)
def append_report(fence: Fence, text: str) -> JobReport:
    """Store the worker's own report. Then the job may complete.

    The same text again returns the report that is there, whichever generation wrote it.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        Refused: `empty_output`, there is nothing in it. Nothing was written.
        IllegalTransition: another report is written. Nothing was written.
    """
    job = lock_owned(fence)
    kept = bounded_report(text, JobLimits.stored(job.budget).report_bytes)
    if not kept.text:
        raise Refused(ErrorCode.EMPTY_OUTPUT)
    known = JobReport.objects.filter(job_id=job.pk, kind=JobReport.Kind.RESULT).first()
    if known is not None:
        if known.digest != kept.digest:
            raise IllegalTransition("the report is written")
        transaction.set_rollback(True)
        return known
    return JobReport.objects.create(
        job_id=job.pk,
        generation=fence.generation,
        kind=JobReport.Kind.RESULT,
        text=kept.text,
        byte_count=kept.bytes,
        digest=kept.digest,
    )
