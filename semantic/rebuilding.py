"""Deriving everything anew, by whoever asks and beside whatever workers run.

The manifest that is being built remembers how far it is, so whoever is cut short begins where
it was left: at the messages that still lack their vector.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from semantic import bounds, indexes, transitions, upkeep
from semantic.embedders import factory
from semantic.models import Manifest
from semantic.transitions import Progress
from semantic.worker import Drained, SemanticWorker
from turns.tools.runner import in_own_thread

# How often it is said how far things are.
SHOW_SECONDS: Final = 0.5
# A pass lasts no longer: where people go on talking it would have no end, and the manifest may
# have caught up meanwhile.
PASS_SECONDS: Final = 2.0
# Jobs that another worker holds, or left, come back within a lease; then there is more to do.
WAIT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild came to. `error_code` says what kept it from its end."""

    manifest: Manifest
    resumed: bool
    activated: bool
    progress: Progress
    seconds: float
    error_code: ErrorCode | None = None
    # why it does not take over, although all of it has settled
    withheld: str = ""


Show = Callable[[Manifest, Progress], None]


def begin_or_resume() -> tuple[Manifest, bool]:
    """Return the manifest to fill, and whether it was begun before.

    What it gave up, and what keeps it from taking over, is tried anew at once.

    Raises:
        ProviderFailed: the embedder cannot say what it is now. Nothing is written.
    """
    identity = factory.from_settings().identity
    unfinished = upkeep.building()
    if unfinished is not None and unfinished.digest == identity.digest:
        while transitions.begin_anew(unfinished.pk, pause_seconds=0):
            pass
        return unfinished, True
    return transitions.begin(identity), False


async def rebuild(worker: SemanticWorker, show: Show | None = None) -> Rebuilt:
    """Fill the manifest of the configured embedder, then let it answer.

    It ends early where messages failed that are to be tried again only later: any worker goes
    on with them then, and so does the next rebuild. So it does when another beginning retired
    its manifest.
    """
    began = time.monotonic()
    manifest, resumed = await in_thread(begin_or_resume)
    showing = asyncio.create_task(_keep_showing(manifest, show)) if show else None
    try:
        activated, code = await _fill(manifest, worker)
    finally:
        if showing is not None:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
    manifest = await in_thread(Manifest.objects.get, pk=manifest.pk)
    progress = await in_thread(transitions.progress, manifest)
    withheld = ""
    if manifest.state == Manifest.State.BUILDING:
        withheld = (await in_thread(upkeep.shortfall, manifest)).words
    if show is not None:
        show(manifest, progress)
    seconds = time.monotonic() - began
    return Rebuilt(manifest, resumed, activated, progress, seconds, code, withheld)


async def _fill(manifest: Manifest, worker: SemanticWorker) -> tuple[bool, ErrorCode | None]:
    """Return whether the manifest answers now, and what kept it from that."""
    broke_off = 0
    code = None
    while True:
        if await in_thread(_state, manifest) == Manifest.State.RETIRED:
            return False, code  # and nobody derives what it still lacks
        filled = await in_thread(upkeep.fill, manifest)
        drained = await worker.drain(seconds=PASS_SECONDS)
        code = drained.error_code or code
        if drained.error_code is not None and not drained.completed:
            broke_off += 1
            # what was left is claimed again when its lease is over, so many times
            if broke_off >= bounds.ATTEMPTS:
                return False, drained.error_code
        if filled:
            continue
        if (await in_thread(upkeep.lag, manifest)).open:
            if drained == Drained():  # others hold the rest
                await asyncio.sleep(WAIT_SECONDS)
        elif (answers := await _let_answer(manifest)) is not None:
            return answers, None if answers else code


async def _let_answer(manifest: Manifest) -> bool | None:
    """Return whether the manifest, which has caught up, answers; None when it lags again."""
    withheld = (await in_thread(upkeep.shortfall, manifest)).is_too_much
    if not withheld and await in_thread(upkeep.needs_index, manifest):
        await in_own_thread(partial(indexes.build_index, manifest))
    if await in_thread(upkeep.activate, manifest):
        while await in_thread(upkeep.reconcile):
            pass  # the vectors that answered before are removed
        return True
    state = await in_thread(_state, manifest)
    if state == Manifest.State.BUILDING and (await in_thread(upkeep.lag, manifest)).open:
        return None
    # a worker was faster, or another rebuild began, or messages failed
    return bool(state == Manifest.State.ACTIVE)


def _state(manifest: Manifest) -> str:
    return Manifest.objects.values_list("state", flat=True).get(pk=manifest.pk)


async def _keep_showing(manifest: Manifest, show: Show) -> None:
    while True:
        show(manifest, await in_thread(transitions.progress, manifest))
        await asyncio.sleep(SHOW_SECONDS)
