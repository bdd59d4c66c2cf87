"""Deriving what waits to be derived: claim, embed, persist, a batch at a time, overlapping.

    claim (its lease begins) -> embed (bounded, outside any transaction) -> persist, or fail

While one batch is being persisted the next is embedded and the one after is claimed. A provider
failure ends the jobs of its batch; anything else that breaks leaves them leased, and once the
lease is over they are claimed again (contract, "Semantic derivatives").
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
from django.db import connection

from recovery.errors import ErrorCode, ProviderFailed
from recovery.executor import in_thread
from recovery.probes import areach, reach
from semantic import bounds, transitions
from semantic.embedders import factory, local
from semantic.embedders.embedder import Embedder, Purpose, Vector
from semantic.models import Manifest
from semantic.transitions import Claim, Derived, Persisted
from turns.confirmed import UNKNOWN

log = structlog.get_logger()

EmbedderFor = Callable[[Manifest], Embedder | None]
# What became of one text: its vector, or why it has none.
Outcome = Vector | ErrorCode

DERIVED: Final = (Manifest.State.ACTIVE, Manifest.State.BUILDING)

# What writing the vectors may take; past it the lease may be over before they are written.
PERSIST_SECONDS: Final = 5
# The next batch is claimed ahead only behind a provider that takes no longer than this: what
# is claimed must not wait for long, as its lease runs.
AHEAD_SECONDS: Final = 5
# A manifest whose provider failed is left alone for so long, however long the pass still is.
REST_SECONDS: Final = 30
# To people it is one thing, whichever way the service was not there.
OFFLINE: Final = frozenset(
    {
        ErrorCode.PROVIDER_UNREACHABLE,
        ErrorCode.PROVIDER_TIMEOUT,
        ErrorCode.PROVIDER_UNAVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of the jobs that one pass claimed. Those of a broken pass stay leased.

    `error_code` says why the pass could not do all it found: the provider's failure, or
    `semantic_drain_failed`.
    """

    completed: int = 0
    failed: int = 0
    invalidated: int = 0
    error_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    manifest: Manifest
    embedder: Embedder
    claims: Sequence[Claim]
    # Before the claim was sent, on this process's own clock: its lease began later.
    claimed_at: float

    @property
    def lasts(self) -> bool:
        """Whether the lease outlives the provider's timeout and the persist after it."""
        needed = bounds.PROVIDER_TIMEOUT_SECONDS + PERSIST_SECONDS
        return time.monotonic() + needed <= self.claimed_at + bounds.LEASE_SECONDS


@dataclass(slots=True)
class _Tally:
    """A pass under way: its counts, and which manifests rest until when."""

    completed: int = 0
    failed: int = 0
    invalidated: int = 0
    error_code: ErrorCode | None = None
    resting: dict[int, float] = field(default_factory=dict)
    # when it claims nothing more, on this process's own clock
    until: float = math.inf

    claimed: bool = False
    # whether the provider was quick last; nothing is claimed ahead behind one not yet heard
    quick: bool = False

    def may_claim(self, manifest: Manifest) -> bool:
        return self.resting.get(manifest.pk, 0.0) <= time.monotonic()

    def broke_off(self, manifest: Manifest, code: ErrorCode) -> None:
        self.error_code = code
        self.resting[manifest.pk] = time.monotonic() + REST_SECONDS
        self.quick = False

    def drained(self) -> Drained:
        return Drained(self.completed, self.failed, self.invalidated, self.error_code)


class SemanticWorker:
    """Derives vectors for the manifests whose embedder this process has."""

    def __init__(self, embedder_for: EmbedderFor = factory.for_manifest) -> None:
        self._embedder_for = embedder_for
        self._stopped = False
        self._complained: ErrorCode | None = None
        # whose last batch was not full: nothing more of it was waiting then
        self._emptied: int | None = None

    def stop_claiming(self) -> None:
        """Claim nothing more: a pass under way ends with what it holds. Only sets a flag."""
        self._stopped = True

    async def warm_up(self, manifest: Manifest) -> None:
        """Read the weights of the manifest's embedder, if they are on this machine, so that the
        first message need not wait for them. What goes wrong shows in the first pass."""
        if manifest.provider != local.PROVIDER:
            return
        embedder = await in_thread(self._embedder_for, manifest)
        if embedder is not None:
            with contextlib.suppress(ProviderFailed):
                await embedder.embed(["ready"], Purpose.PASSAGE)

    async def drain(self, *, seconds: float = math.inf) -> Drained:
        """Make one pass, until nothing can be claimed; return what became of it.

        Where people talk all the time it would not end: after `seconds` nothing more is
        claimed. It raises nothing but for being cancelled.
        """
        began = time.monotonic()
        tally = _Tally(until=began + seconds)
        try:
            await self._pass(tally)
        except Exception as error:  # noqa: BLE001 - the outermost loop of deriving
            # The database is away, or something of ours is broken: what is claimed is
            # claimed again when its lease is over.
            tally.error_code = ErrorCode.SEMANTIC_DRAIN_FAILED
            self._complain(tally.error_code, error)
        if tally.error_code is None:
            self._complained = None
        if tally.completed or tally.failed or tally.invalidated:
            log.info(
                "semantic.drained",
                count=tally.completed,
                failed=tally.failed,
                skipped=tally.invalidated,
                duration_ms=round(1000 * (time.monotonic() - began)),
            )
        return tally.drained()

    async def _pass(self, tally: _Tally) -> None:
        ahead: asyncio.Task[_Batch | None] | None = None
        storing: asyncio.Task[None] | None = None
        try:
            batch = await in_thread(self._claim, tally)
            while batch is not None:
                if tally.quick:
                    ahead = asyncio.create_task(in_thread(self._claim, tally))
                outcomes = await self._embed(batch, tally)
                if storing is not None:
                    await storing
                storing = asyncio.create_task(self._store(batch, outcomes, tally))
                batch = await (ahead or in_thread(self._claim, tally))
                ahead = None
        finally:
            # What was embedded is stored, whatever became of the claim behind it.
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
            if storing is not None:
                await storing

    def _claim(self, tally: _Tally) -> _Batch | None:
        """Return the next batch; messages of the active manifest go before those of the next,
        which has its turn when none were left: where people go on talking some always wait.

        Asked anew each time: manifests come and go while a long pass goes on.
        """
        if self._stopped or (tally.claimed and time.monotonic() >= tally.until):
            return None
        # "active" sorts before "building"
        derived = Manifest.objects.filter(state__in=DERIVED).order_by("state")
        for manifest in sorted(derived, key=lambda manifest: manifest.pk == self._emptied):
            if not tally.may_claim(manifest):
                continue
            embedder = self._embedder_for(manifest)
            if embedder is None:
                continue
            claimed_at = time.monotonic()
            claims = transitions.claim_jobs(manifest.pk, limit=embedder.batch_items)
            if claims:
                tally.claimed = True
                self._emptied = manifest.pk if len(claims) < embedder.batch_items else None
                return _Batch(manifest, embedder, claims, claimed_at)
        return None

    async def _embed(self, batch: _Batch, tally: _Tally) -> Sequence[Outcome]:
        """Return what became of each claim's text; nothing where they are left to their lease.

        Nothing is begun that the lease might not outlast.
        """
        await areach("semantic.claimed")
        manifest, claims = batch.manifest, batch.claims
        if not batch.lasts:
            log.warning(
                "semantic.left_to_lease", count=len(claims), generation=manifest.generation
            )
            tally.broke_off(manifest, tally.error_code or ErrorCode.SEMANTIC_DRAIN_FAILED)
            return []
        began = time.monotonic()
        try:
            async with asyncio.timeout(bounds.PROVIDER_TIMEOUT_SECONDS):
                outcomes = await batch.embedder.embed(
                    [claim.text for claim in claims], Purpose.PASSAGE
                )
            if len(outcomes) != len(claims):
                raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL)
        except ProviderFailed as error:
            return self._all_failed(batch, tally, error.code, error)
        except TimeoutError as error:
            return self._all_failed(batch, tally, ErrorCode.PROVIDER_TIMEOUT, error)
        except Exception as error:  # noqa: BLE001 - one batch must not end the others
            # Ours to repair; the jobs are as good as before and stay leased.
            tally.broke_off(manifest, ErrorCode.SEMANTIC_DRAIN_FAILED)
            self._complain(ErrorCode.SEMANTIC_DRAIN_FAILED, error)
            return []
        tally.quick = time.monotonic() - began <= AHEAD_SECONDS
        await areach("semantic.embedded")
        return outcomes

    def _all_failed(
        self, batch: _Batch, tally: _Tally, code: ErrorCode, error: Exception
    ) -> Sequence[Outcome]:
        """A provider failure ends every job of the batch, and claims wait a little."""
        code = _shown(code)
        tally.broke_off(batch.manifest, code)
        self._complain(code, error)
        return [code] * len(batch.claims)

    async def _store(self, batch: _Batch, outcomes: Sequence[Outcome], tally: _Tally) -> None:
        """Persist the vectors, and fail the jobs that have none."""
        derived: list[Derived] = []
        failed: list[tuple[Claim, ErrorCode]] = []
        for claim, outcome in zip(batch.claims, outcomes, strict=bool(outcomes)):
            if isinstance(outcome, ErrorCode):
                failed.append((claim, _shown(outcome)))
            else:
                derived.append(Derived(claim, outcome))
        write = partial(_write, batch.manifest.pk, derived, failed)
        try:
            persisted, failed_count = await in_thread(write)
        except UNKNOWN:
            # Persisting twice is safe, and a new session may be there: what was computed is not
            # thrown away because those that this process has were lost.
            persisted, failed_count = await in_thread(_anew, write)
        tally.completed += len(persisted.completed)
        tally.invalidated += len(persisted.invalidated)
        tally.failed += failed_count

    def _complain(self, code: ErrorCode, error: Exception) -> None:
        """Say once what is wrong, and again only after a pass without fault."""
        if code is not self._complained:
            self._complained = code
            log.warning("semantic.drain_broke_off", error_code=code.value, exc_info=error)


def _write(
    manifest_id: int, derived: Sequence[Derived], failed: Sequence[tuple[Claim, ErrorCode]]
) -> tuple[Persisted, int]:
    reach("semantic.persisting")
    persisted = transitions.persist(manifest_id, derived)
    failed_count = transitions.fail(failed)
    reach("semantic.persisted")
    return persisted, failed_count


def _anew(write: Callable[[], tuple[Persisted, int]]) -> tuple[Persisted, int]:
    """Write on a session that nobody has used yet. Where one was lost, all may be."""
    connection.close()
    return write()


def _shown(code: ErrorCode) -> ErrorCode:
    return ErrorCode.SEMANTIC_PROVIDER_OFFLINE if code in OFFLINE else code
