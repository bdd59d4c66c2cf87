"""Removing the worktrees of jobs that have ended without their worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from django.db.models import Q
from django.db.models.functions import Now

from work.coding import processes, removal, worktrees
from work.coding.git import Git
from work.coding.places import Place, all_places, put_aside
from work.coding.programs import Programs
from work.coding.workspace import KEPT_MESSAGE
from work.models import WorkJob

log = structlog.get_logger(__name__)

# No claim has a generation like this: whoever of an earlier one wakes up, stops.
_LAST: Final = 2**31
# What was logged as kept: a repository that was deleted stays away, and so would the line.
_told: Final[set[Path]] = set()


@dataclass(frozen=True, slots=True)
class Reaped:
    """Which jobs' worktrees were removed, and which could not be."""

    removed: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


def open_jobs(job_ids: Collection[int]) -> Collection[int]:
    """Return which of the jobs have not ended."""
    jobs = WorkJob.objects.open().filter(pk__in=job_ids)
    return set(jobs.values_list("pk", flat=True))


def reap_worktrees(
    only: Collection[int] | None = None,
    *,
    still_open: Callable[[Collection[int]], Collection[int]] = open_jobs,
) -> Reaped:
    """Return what was removed of jobs that have ended, or whose rows are gone.

    What is not committed is kept on the job's branch first. A worktree in which a living
    process works is left to it. A second run changes nothing more.
    """
    places = {
        place.job_id: place for place in all_places() if only is None or place.job_id in only
    }
    ended = places.keys() - set(still_open(places.keys())) if places else set()
    if only is None:
        _finish_removing()
    done: Mapping[int, bool] = {job_id: _reap(places[job_id]) for job_id in sorted(ended)}
    return Reaped(
        tuple(job_id for job_id, removed in done.items() if removed),
        tuple(job_id for job_id, removed in done.items() if not removed),
    )


def _finish_removing() -> None:
    """Remove what a worker that was killed had put aside to remove it."""
    for left in put_aside():
        try:
            removal.remove(left)
        except OSError as error:
            log.warning("coding.removal_unfinished", exc_info=error)


def reap_if_over(job_id: int) -> None:
    """Remove what is left of a job that nobody claims again, even if its end is not written
    yet: a cancel, the end of its time, or its removal came while its worktree was made."""
    goes_on = WorkJob.objects.open().filter(pk=job_id, cancel_requested_at=None)
    if not goes_on.filter(Q(deadline_at=None) | Q(deadline_at__gt=Now())).exists():
        reap_worktrees([job_id], still_open=lambda _: ())


def _reap(place: Place) -> bool:
    held: int | None = None
    try:
        held = place.hold()
        if held is None:
            return False
        claim = place.take(_LAST)
        processes.end_all_left(place.running, place.mark)
        state = place.state()
        worktrees.require_known(place, state)
        if state is not None:
            repository = Path(state.repository)
            git = Git(Programs(claim), writable=[place.base, repository])
            message = KEPT_MESSAGE.format(job_id=place.job_id)
            facts = worktrees.take_down(git, claim, state, message=message)
            log.info("coding.worktree_reaped", job_id=place.job_id, count=facts.changed_files)
        worktrees.remove_place(claim)
    except Exception as error:  # whatever it is, the other places shall not wait for it
        if place.base.exists() and place.base not in _told:
            _told.add(place.base)
            log.warning("coding.worktree_kept", job_id=place.job_id, exc_info=error)
        return False
    finally:
        if held is not None:
            os.close(held)
    _told.discard(place.base)
    return True
