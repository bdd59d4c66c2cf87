"""What a job reports: written once, before the job ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from recovery.blanks import shows_something
from recovery.bounds import cut_utf8, storable
from recovery.errors import ErrorCode, IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from recovery.statements import MOVED_SQL, run, stored
from turns import events
from turns.digests import digest
from work.limits import JobLimits
from work.models import JobReport
from work.transitions.locks import HELD, OWNED, next_mark_sql, presented, refusal

CUT_MARK: Final = "\n[cut: the report was {bytes} bytes]"

_BUDGET: Final = "SELECT budget::text FROM work_workjob WHERE id = %(job)s"
_FIELDS: Final = [field.attname for field in JobReport._meta.concrete_fields]
# The job is locked by moving its mark: by that an end that waited meanwhile finds that it has
# not seen all.
_APPEND: Final = f"""
    WITH {OWNED}, marked AS (
        UPDATE work_workjob j SET write_mark = {next_mark_sql("j")}
        FROM raised WHERE j.id = %(job)s AND {HELD}
        RETURNING j.id
    ), written AS (
        INSERT INTO work_jobreport (job_id, generation, kind, text, byte_count, digest)
        SELECT marked.id, %(generation)s, 'result', %(text)s, %(bytes)s, %(digest)s FROM marked
        ON CONFLICT (job_id, kind) DO NOTHING
        RETURNING {", ".join(_FIELDS)}
    )
    SELECT raised.id, written.* FROM raised LEFT JOIN written ON true
    WHERE {MOVED_SQL.format(moved="written.id IS NOT NULL")}
"""  # noqa: S608  constants


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


def append_report(fence: Fence, text: str) -> JobReport:
    """Store the worker's own report. Then the job may complete.

    The same text again returns the report that is there, whichever generation wrote it.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        Refused: `empty_output`, it shows a reader nothing. Nothing was written.
        IllegalTransition: another report is written. Nothing was written.
    """
    # the budget never changes, so it is read without a lock
    budget = run(_BUDGET, {"job": fence.pk})
    if not budget:
        raise StaleFence
    kept = bounded_report(text, JobLimits.stored(json.loads(budget[0][0])).report_bytes)
    if not shows_something(kept.text):
        raise Refused(ErrorCode.EMPTY_OUTPUT)
    report = {"text": kept.text, "digest": kept.digest, "bytes": kept.bytes}
    written = run(_APPEND, presented(fence, **report))
    if written:
        [(conversation_id, *values)] = written
        events.announce_on_commit(conversation_id)
        return stored(JobReport, dict(zip(_FIELDS, values, strict=True)))
    refused = refusal(fence, "another report is written")
    known = JobReport.objects.filter(job_id=fence.pk, kind=JobReport.Kind.RESULT).first()
    if isinstance(refused, IllegalTransition) and known and known.digest == kept.digest:
        return known
    raise refused
