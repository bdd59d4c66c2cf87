"""Work is delegated: who asked for what, and what was allowed, is durable before it begins."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import PurePosixPath
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Max
from django.db.models.functions import Now

from recovery.blanks import shows_something
from recovery.bounds import ADMISSION_GRACE_SECONDS
from recovery.constraints import violated_constraint
from recovery.errors import ErrorCode, Refused
from recovery.switches import require_open
from turns import events
from turns.digests import digest_json
from turns.models import Conversation, Message
from turns.transitions import require_running
from turns.transitions.conversations import checked_client_key, is_storable, lock_person
from work import bounds
from work.dispatch import dispatch_job
from work.lifecycles import KIND
from work.limits import JobLimits, wall_clock
from work.models import Computer, WorkJob
from work.prompts import prompt

# Somebody with too many jobs at work is told to come back after a while.
RETRY_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class JobAsk:
    """What a person asks for. `cwd` may be left out where a computer has one root."""

    kind: str
    goal: str
    context: str = ""
    computer_id: int | None = None
    agent: str = ""
    cwd: str = ""
    wall_clock_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The job, and whether this request made it or repeated an earlier one."""

    job: WorkJob
    created: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a job works, and what it may do there, as the computer's row says now."""

    computer_id: int | None
    host_id: str
    cwd: str
    authority: dict[str, Any]


def admit_job(
    person_id: int,
    conversation_id: int,
    ask: JobAsk,
    *,
    client_key: str | None = None,
    call: UUID | None = None,
) -> Admission:
    """Store the request with today's authority and budget; after the commit hint to a worker.

    The same `client_key` with the same ask, or with what the job shows of it, returns the job
    it made, whatever became of it.
    With `call` the request is the effect of that tool call, which has to be running still.

    Raises:
        StaleFence: the call does not run any more. Nothing was written.
        Refused: `not_found` for an unknown or foreign conversation or computer, `empty_goal`,
            `goal_too_long`, `context_too_long`, `invalid_text`, `invalid_request` for a place
            that is said for deep work, `job_kind_unavailable`,
            `computer_required`, `outside_roots` (also for no directory where the computer has
            not one root), `wall_clock_out_of_range`,
            `client_key_conflict` for a key used with another ask, `paused` or
            `job_limit_reached` with the seconds to wait. Nothing was written.
    """
    _check(ask)
    if client_key is not None:
        client_key = checked_client_key(client_key)
    try:
        return _admit(person_id, conversation_id, ask, client_key, call)
    except IntegrityError as error:
        # The locks keep two admissions apart. A row written past them is still answered for.
        if violated_constraint(error) != "work_workjob_one_per_client_key":
            raise
        return _admit(person_id, conversation_id, ask, client_key, call)


def _check(ask: JobAsk) -> None:
    """Return when the ask can be stored and this installation does such jobs."""
    if ask.kind not in {WorkJob.Kind.DEEP_WORK, WorkJob.Kind.CODING}:
        raise Refused(ErrorCode.JOB_KIND_UNAVAILABLE)
    if not all(map(is_storable, (ask.goal, ask.context, ask.cwd, ask.agent))):
        raise Refused(ErrorCode.INVALID_TEXT)
    if not shows_something(ask.goal):
        raise Refused(ErrorCode.EMPTY_GOAL)
    if len(ask.goal.encode()) > bounds.GOAL_MAX_BYTES:
        raise Refused(ErrorCode.GOAL_TOO_LONG)
    if len(ask.context.encode()) > bounds.CONTEXT_MAX_BYTES:
        raise Refused(ErrorCode.CONTEXT_TOO_LONG)
    if len(ask.agent) > bounds.AGENT_MAX_CHARS:
        raise Refused(ErrorCode.INVALID_REQUEST)
    if ask.kind == WorkJob.Kind.CODING and ask.computer_id is None:
        raise Refused(ErrorCode.COMPUTER_REQUIRED)
    # deep work is done nowhere: a place that is said for it would be dropped without a word
    if ask.kind == WorkJob.Kind.DEEP_WORK and (ask.computer_id is not None or ask.cwd):
        raise Refused(ErrorCode.INVALID_REQUEST)
    wall_clock(WorkJob.Kind(ask.kind), ask.wall_clock_seconds)


@transaction.atomic(durable=True)
def _admit(
    person_id: int,
    conversation_id: int,
    ask: JobAsk,
    client_key: str | None,
    call: UUID | None,
) -> Admission:
    lock_person(person_id)
    mine = Conversation.objects.filter(pk=conversation_id, owner_id=person_id)
    if not mine.update(revision=F("revision") + 1, updated_at=Now()):
        raise Refused(ErrorCode.NOT_FOUND)

    jobs = WorkJob.objects.filter(conversation_id=conversation_id)
    if client_key is not None and (known := jobs.filter(client_key=client_key).first()):
        if not _made(known, ask):
            raise Refused(ErrorCode.CLIENT_KEY_CONFLICT)
        transaction.set_rollback(True)  # a repeat changes nothing, the revision included
        return Admission(known, created=False)
    if call is not None:
        require_running(call)
    require_open(KIND)
    if WorkJob.objects.of_person(person_id).open().count() >= bounds.ACTIVE_JOBS_PER_OWNER:
        raise Refused(ErrorCode.JOB_LIMIT_REACHED, retry_after_seconds=RETRY_SECONDS)

    place = _place(person_id, ask)
    limits = JobLimits(wall_clock(WorkJob.Kind(ask.kind), ask.wall_clock_seconds))
    said = Message.objects.filter(conversation_id=conversation_id).aggregate(last=Max("pk"))
    job = WorkJob.objects.create(
        person_id=person_id,
        conversation_id=conversation_id,
        kind=ask.kind,
        goal=ask.goal,
        context=ask.context,
        prompt=prompt(ask.goal, ask.context),
        computer_id=place.computer_id,
        agent=ask.agent,
        cwd=place.cwd,
        host_id=place.host_id,
        model=settings.LLM_MODEL,
        wall_clock_seconds=limits.wall_clock_seconds,
        authority=place.authority,
        budget=limits.snapshot(),
        before_message_id=(said["last"] or 0) + 1,
        client_key=client_key,
        request_digest=digest_json(asdict(ask)),
        queue_deadline_at=Now() + timedelta(seconds=bounds.QUEUE_DEADLINE_SECONDS),
        next_dispatch_at=Now() + timedelta(seconds=ADMISSION_GRACE_SECONDS),
    )
    job.refresh_from_db()
    events.announce_on_commit(conversation_id)
    transaction.on_commit(partial(dispatch_job, job.pk))
    return Admission(job, created=True)


def _made(job: WorkJob, ask: JobAsk) -> bool:
    """True when the ask made the job, or says what the job shows where that said nothing."""
    places, seconds = {ask.cwd}, {ask.wall_clock_seconds}
    if ask.cwd == job.cwd:
        places.add("")
    if ask.wall_clock_seconds == job.wall_clock_seconds:
        seconds.add(None)
    return any(
        job.request_digest
        == digest_json(asdict(replace(ask, cwd=cwd, wall_clock_seconds=second)))
        for cwd, second in product(places, seconds)
    )


def _place(person_id: int, ask: JobAsk) -> _Place:
    """Return the authority of the job: what its computer's row says at this moment."""
    if ask.kind == WorkJob.Kind.DEEP_WORK:
        return _Place(None, "", "", {"agent": ask.agent})
    # until the commit nobody changes what is copied here
    computers = Computer.objects.select_for_update(no_key=True)
    computer = computers.filter(
        pk=ask.computer_id or 0, person_id=person_id, revoked_at__isnull=True
    ).first()
    if computer is None:
        raise Refused(ErrorCode.NOT_FOUND)
    cwd = _inside(computer.roots, ask.cwd)
    authority = {
        "computer_id": computer.pk,
        "name": computer.name,
        "host_id": computer.host_id,
        "roots": computer.roots,
        "tier": computer.tier,
        "checks": computer.checks,
        "cwd": cwd,
        "agent": ask.agent,
    }
    return _Place(computer.pk, computer.host_id, cwd, authority)


def _inside(roots: list[str], cwd: str) -> str:
    """Return the directory without `..` and repeated slashes; the only root when none is said.

    By the text alone: links are followed by the worker, on the machine that has them.

    Raises:
        Refused: `outside_roots`.
    """
    if not cwd and len(roots) == 1:
        cwd = roots[0]
    place = _straight(cwd)
    if (
        not cwd.startswith("/")
        or len(str(place).encode()) > bounds.PATH_MAX_BYTES
        or not any(place.is_relative_to(_straight(root)) for root in roots)
    ):
        raise Refused(ErrorCode.OUTSIDE_ROOTS)
    return str(place)


def _straight(path: str) -> PurePosixPath:
    """Return an absolute path without detours; two slashes in front are one, as on Linux."""
    return PurePosixPath(posixpath.normpath(f"/{path.lstrip('/')}"))
