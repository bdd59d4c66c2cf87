"""A job ends, with all it consists of and the message that says so, in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now

from recovery.arrays import array
from recovery.constraints import violated_constraint
from recovery.errors import ErrorCode, IllegalTransition
from recovery.fences import GENERATION_SHIFT_BITS, NEXT_MARK_SQL, WRITE_COUNT_MASK, Fence
from recovery.statements import MOVED_SQL, run, stored
from turns import events
from turns.models import Conversation
from work import bounds
from work.models import WorkJob, WorkProviderStep
from work.notices import notice, read_facts, read_last_words
from work.transitions.children import end_children, provider_step_end
from work.transitions.locks import lock_owned, presented
from work.transitions.reports import bounded_report

# A report is written while its job is open, and named by its message: ids are drawn first.
_GIVE_NOTICE: Final = """
    WITH noticed AS MATERIALIZED (
        SELECT e.*, j.generation, j.conversation_id,
            nextval(pg_get_serial_sequence('work_jobreport', 'id')) AS report_id,
            nextval(pg_get_serial_sequence('turns_message', 'id')) AS message_id
        FROM unnest(%(ids)s::bigint[], %(texts)s::text[], %(digests)s::text[],
            %(sizes)s::int[]) AS e(job_id, text, digest, bytes)
        JOIN work_workjob j ON j.id = e.job_id
    ), reported AS (
        INSERT INTO work_jobreport (id, job_id, generation, kind, text, byte_count, digest)
        SELECT report_id, job_id, generation, 'notice', text, bytes, digest FROM noticed
    ), said AS (
        INSERT INTO turns_message
            (id, conversation_id, role, state, text, digest, finished_at)
        SELECT message_id, conversation_id, 'assistant', 'complete', text, digest,
            statement_timestamp()
        FROM noticed
    )
    INSERT INTO work_jobreportmessage (report_id, message_id)
    SELECT report_id, message_id FROM noticed
"""
_END_JOBS: Final = f"""
    UPDATE work_workjob j SET state = e.state, error_code = e.code,
        finished_at = statement_timestamp(), ended_revision = e.revision,
        write_mark = {NEXT_MARK_SQL}
    FROM unnest(%(ids)s::bigint[], %(states)s::text[], %(codes)s::text[],
        %(revisions)s::bigint[]) AS e(job_id, state, code, revision)
    WHERE j.id = e.job_id
"""  # noqa: S608  constants
_RAISE_REVISIONS: Final = """
    UPDATE turns_conversation SET revision = revision + 1
    WHERE id = ANY(%s::bigint[]) RETURNING id, revision
"""
# Of the row `held`: a running job that nobody asked to stop.
_RUNS: Final = """
    j.generation = held.generation AND j.claim_token = held.token AND j.state = 'running'
        AND j.cancel_requested_at IS NULL
"""
# And nothing of it is open, as far as the statement sees. What has begun since, while it waited
# for the job, the table's rules find; for one job they are asked alone.
_NOTHING_OPEN: Final = """
    NOT EXISTS (SELECT FROM work_workstep s
            WHERE s.job_id = j.id AND s.state IN ('requested', 'running'))
        AND NOT EXISTS (SELECT FROM work_workproviderstep p
            WHERE p.job_id = j.id AND p.state = 'started')
"""
# What the database tells of a job that completed, and what every one of them is.
_TOLD: Final = ("id", "conversation_id", "generation", "finished_at", "ended_revision")
_COMPLETED: Final = {"state": WorkJob.State.COMPLETED, "error_code": ""}
# One that was written to while the statement waited does not end yet: see `_SHOWN`.
_ENDED: Final = f"""
    ended AS (
        UPDATE work_workjob j SET state = 'completed', finished_at = statement_timestamp(),
            ended_revision = held.revision,
            write_mark = (held.generation::bigint << {GENERATION_SHIFT_BITS})
                | ((j.write_mark + 1) & {WRITE_COUNT_MASK})
        FROM held WHERE {{this}} AND {_RUNS} AND j.write_mark = held.write_mark
        RETURNING {", ".join(f"j.{name}" for name in _TOLD)}
    )
"""  # noqa: S608  constants
# Who appends a report moves the job's mark: where that is the one that was seen, so is the
# report.
_SHOWN: Final = """
    said AS MATERIALIZED (
        SELECT ended.conversation_id, r.id AS report_id, r.text, r.digest,
            nextval(pg_get_serial_sequence('turns_message', 'id')) AS message_id
        FROM ended JOIN work_jobreport r ON r.job_id = ended.id AND r.kind = 'result'
    ), written AS (
        INSERT INTO turns_message
            (id, conversation_id, role, state, text, digest, finished_at)
        SELECT message_id, conversation_id, 'assistant', 'complete', text, digest,
            statement_timestamp()
        FROM said
    ), shown AS (
        INSERT INTO work_jobreportmessage (report_id, message_id)
        SELECT report_id, message_id FROM said
    )
"""
# The conversation is locked by raising its revision.
_HELD: Final = f"""
    WITH asked AS (
        SELECT %(generation)s::int AS generation, %(token)s::uuid AS token
    ), held AS (
        UPDATE turns_conversation c SET revision = c.revision + 1
        FROM work_workjob j CROSS JOIN asked AS held
        WHERE j.id = %(job)s AND c.id = j.conversation_id AND {_RUNS} {{and_also}}
        RETURNING c.revision, held.generation, held.token, j.write_mark
    ), {_ENDED.format(this="j.id = %(job)s")}
"""  # noqa: S608  constants
_TELL: Final = f"""
    SELECT e.* FROM held LEFT JOIN ended e ON true
    WHERE {MOVED_SQL.format(moved="e.id IS NOT NULL")}
"""  # noqa: S608  constants
_COMPLETE: Final = f"{_HELD.format(and_also='')}, {_SHOWN} {_TELL}"
# An INSERT prepares its table and fires its triggers even where it has nothing to write: that
# is half of what such an end costs.
_UNREPORTED: Final = """
    AND NOT EXISTS (SELECT FROM work_jobreport r WHERE r.job_id = j.id AND r.kind = 'result')
"""
_COMPLETE_SILENT: Final = f"{_HELD.format(and_also=_UNREPORTED)} {_TELL}"
_COMPLETE_SOME: Final = f"""
    WITH held AS MATERIALIZED (
        SELECT c.revision + 1 AS revision, j.write_mark, mine.*
        FROM unnest(%(ids)s::bigint[], %(generations)s::int[], %(tokens)s::uuid[])
            AS mine(job_id, generation, token)
        JOIN work_workjob j ON j.id = mine.job_id
        JOIN turns_conversation c ON c.id = j.conversation_id
        WHERE {_NOTHING_OPEN}
        ORDER BY c.id FOR NO KEY UPDATE OF c
    ), {_ENDED.format(this="j.id = held.job_id")}, {_SHOWN}, raised AS (
        UPDATE turns_conversation c SET revision = c.revision + 1
        WHERE c.id = ANY(ARRAY(SELECT conversation_id FROM ended))
    )
    SELECT * FROM ended
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class End:
    """How one job is to end; `said` is what its model said last and no row keeps."""

    pk: int
    state: WorkJob.State
    code: ErrorCode
    said: str = ""


def finish_job(
    fence: Fence,
    state: WorkJob.State,
    *,
    reported: bool = False,
    error_code: ErrorCode | None = None,
    response_id: str | None = None,
    usage: dict[str, int] | None = None,
    said: str = "",
) -> WorkJob:
    """End the job for the claim that still holds it; return it as it is.

    A completed job shows its report as a message; every other end shows a notice, with what the
    model has `said` where no row keeps it: a response that was cut before its end, but by a
    person, who is told nothing more. Who knows that there is a report says so by `reported`,
    and it is not asked for first. `usage` and `response_id` belong to the provider step that is
    still open. Once a cancel was requested every end is `cancelled`.

    Raises:
        StaleFence: the job has ended, was released or claimed by another. Nothing was written.
        IllegalTransition: it cannot end like this: completed with a step open. Nothing was
            written.
    """
    if state == WorkJob.State.COMPLETED:
        held = {"job": fence.pk, "generation": fence.generation, "token": fence.token}
        rows = [] if reported else _completed(_COMPLETE_SILENT, held)
        rows = rows or _completed(_COMPLETE, held)
        if rows:
            return _announced(rows)[0]
    return _finish(fence, state, error_code, response_id=response_id, usage=usage, said=said)


def finish_jobs(fences: Sequence[Fence], state: WorkJob.State) -> list[WorkJob]:
    """Complete the jobs that these claims still hold, set-wise; return them.

    One that is missing was not completed: `finish_job` says why.
    """
    assert state == WorkJob.State.COMPLETED  # noqa: S101  any other end needs its own notice
    held = {
        "ids": [fence.pk for fence in fences],
        "generations": [fence.generation for fence in fences],
        "tokens": [fence.token for fence in fences],
    }
    completed = _announced(_completed(_COMPLETE_SOME, held))
    if completed or len(fences) == 1:
        return completed
    # none, perhaps for the sake of one
    return [job for fence in fences for job in finish_jobs([fence], state)]


def _completed(statement: str, held: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of jobs that completed; none where something of one was begun while the
    statement waited for it."""
    try:
        return run(statement, held)
    except IntegrityError as error:
        if violated_constraint(error) != "work_workjob_ends_whole":
            raise
        return []


def _announced(rows: Iterable[tuple[Any, ...]]) -> list[WorkJob]:
    """Return the completed jobs, whose other columns are read when somebody asks."""
    jobs = [
        stored(WorkJob, {**_COMPLETED, **dict(zip(_TOLD, row, strict=True))}) for row in rows
    ]
    for job in jobs:
        events.announce_on_commit(job.conversation_id)
    return jobs


@transaction.atomic(durable=True)
def _finish(
    fence: Fence,
    state: WorkJob.State,
    error_code: ErrorCode | None,
    *,
    response_id: str | None,
    usage: dict[str, int] | None,
    said: str,
) -> WorkJob:
    job = lock_owned(fence)
    if job.cancel_requested_at is not None:
        state, error_code = WorkJob.State.CANCELLED, ErrorCode.CANCELLED
    WorkJob.LIFECYCLE.require(job.state, state)
    code = error_code or _CODES.get(state, ErrorCode.INTERNAL_ERROR)
    if state == WorkJob.State.COMPLETED:
        # the statements before may have waited for who wrote to the job; now nobody does
        rows = _completed(_COMPLETE, presented(fence))
        if not rows:
            raise IllegalTransition("a step is open")
        return _announced(rows)[0]
    WorkProviderStep.objects.filter(job_id=job.pk, state=WorkProviderStep.State.STARTED).update(
        state=provider_step_end(state),
        error_code=code.value,
        response_id=response_id,
        usage=usage,
        finished_at=Now(),
    )
    revision = Conversation.objects.values_list("revision", flat=True)
    end_jobs(
        [End(job.pk, state, code, "" if state == WorkJob.State.CANCELLED else said)],
        revisions={job.conversation_id: revision.get(pk=job.conversation_id)},
    )
    job.refresh_from_db()
    return job


_CODES: Final = {
    WorkJob.State.CANCELLED: ErrorCode.CANCELLED,
    WorkJob.State.BUDGET_EXHAUSTED: ErrorCode.BUDGET_EXHAUSTED,
}


def raise_revisions_of(conversation_ids: Iterable[int]) -> dict[int, int]:
    """Raise the revisions of locked conversations; return them. By id: a join reads the whole
    table."""
    with connection.cursor() as cursor:
        cursor.execute(_RAISE_REVISIONS, [array(conversation_ids)])
        return dict(cursor.fetchall())


def end_jobs(ends: Sequence[End], *, revisions: dict[int, int]) -> None:
    """End locked, open jobs that did not complete, each with its notice, set-wise.

    In the transaction of the caller, who holds the locks of the conversations and jobs, has
    tested under them that each is still to be ended, and announces it. `revisions` are those of
    the conversations, raised already.
    """
    if not ends:
        return
    ids = [end.pk for end in ends]
    facts = read_facts(ids)
    spoken = [end.pk for end in ends if end.state == WorkJob.State.BUDGET_EXHAUSTED]
    last_words = read_last_words(spoken)
    notices = [
        bounded_report(
            notice(facts[end.pk], end.state, end.code, end.said or last_words.get(end.pk, "")),
            bounds.REPORT_MAX_BYTES,
        )
        for end in ends
    ]
    alike: dict[tuple[WorkJob.State, ErrorCode], list[int]] = defaultdict(list)
    for end in ends:
        alike[end.state, end.code].append(end.pk)
    with connection.cursor() as cursor:
        cursor.execute(
            _GIVE_NOTICE,
            {
                "ids": array(ids),
                "texts": array(kept.text for kept in notices),
                "digests": array(kept.digest for kept in notices),
                "sizes": array(kept.bytes for kept in notices),
            },
        )
    for (state, code), same in alike.items():
        end_children(same, state, code)
    with connection.cursor() as cursor:
        cursor.execute(
            _END_JOBS,
            {
                "ids": array(ids),
                "states": array(end.state.value for end in ends),
                "codes": array(end.code.value for end in ends),
                "revisions": array(revisions[facts[end.pk].conversation_id] for end in ends),
            },
        )
