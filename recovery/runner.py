"""What recovering owned rows has in common, whatever they are.

An app describes its owned table and says what settling means; the runner does the rest. A
subclass looks like this, and the hooks are called in this order:

    class TurnRecovery(Recovery):
        kind = "turns"                  # in reports, events and failures
        model = Turn                    # the owned table, see Columns
        parent = "conversation"         # foreign key whose row is locked before ours, or None
        owned_states = ("running",)     # states that need a living owner
        queued_states = ("queued",)     # states that wait for a claim

        def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]: ...
        def publish(self, settled: Sequence[Settled]) -> None: ...
        def dispatch(self, pks: Sequence[int]) -> None: ...

`settle(orphans)`
    runs inside the batch's transaction. Every orphan's parent and row are locked FOR NO KEY
    UPDATE (by ascending id, SKIP LOCKED) and were tested again *after* the lock, so a plain
    set-wise `UPDATE … WHERE id = ANY(pks)` is right; lock-and-fold in one statement is not
    needed and would lose text. Write parent, row and children with `django.db.connection`,
    move `write_mark` by `fences.NEXT_MARK_SQL`, open no transaction and catch no database
    error. Return one `Settled` for each orphan that was written; one left out was no orphan
    after all. `orphan.cause.value` is a valid `ErrorCode`. The runner writes the
    `RecoveryEvent`s and clears `RecoveryFailure`s in the same transaction.
`publish(settled)`
    runs after the commit, for what `settle` returned (never for redispatched rows).
`dispatch(pks)`
    runs after the commit: send a claim hint for each row. Queued rows are redispatched by the
    runner itself with back-off (5 s at admission, then 15, 45, 135 s): it raises
    `dispatch_count`, moves `next_dispatch_at` and `write_mark`. Admission sets
    `next_dispatch_at = now() + 5 s`.

A recovery that adopts *releases*: back to a queued state with the next generation and its
first mark, no owner, no token, `dispatch_count` 0, a new `queue_deadline_at`, and
`next_dispatch_at = now() + 5 s` as at admission: a row due at once would be hinted at, and
written, once more by the next pass. The hint is `self.dispatch`, called from `publish`. Return
`Settled(orphan, Action.ADOPTED)`; the event keeps the generation and the owner that were lost.
A row is taken up once in a pass, whatever becomes of it meanwhile. What settling depends on
beside the cause (attempts left, `cancel_requested_at`) is read in `settle`, under the lock.
`owned_row_triggers(adopted=True)` has the database refuse a release without a generation.

Neither `publish` nor `dispatch` can fail a pass: what they raise is logged and swallowed
(they are hints).

Columns: id, state, owner, generation, write_mark, deadline_at, queue_deadline_at,
next_dispatch_at, dispatch_count and the foreign key `parent`. An orphan is a row in an owned
state whose owner has no living runtime row (cause: how the runtime ended), or that is past
`deadline_at` + 10 s (`deadline_passed`), or a row in a queued state past `queue_deadline_at`
(`never_started`, or `not_adopted` where it once was claimed): see `recovery.orphans`.

Register in `AppConfig.ready`: `runner.register(TurnRecovery())`. `TurnRecovery().run()`
buries first.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import structlog
from django.db import OperationalError, connection, models, transaction

from recovery import bounds, failures, liveness
from recovery.arrays import array
from recovery.database_errors import is_away, is_collision
from recovery.models import Action
from recovery.orphans import Orphan, OwnedTable
from recovery.redaction import describe
from recovery.reports import RecoveryReport

__all__ = ["Orphan", "Recovery", "RecoveryReport", "Settled", "register", "registered"]

log = structlog.get_logger(__name__)

COLLISION_ATTEMPTS: Final = 4
LOCKED_PAUSE_SECONDS: Final = 0.25
_WRITE_EVENTS: Final = """
    INSERT INTO recovery_recoveryevent
        (kind, row_id, cause, action, generation, error_code, owner, detail)
    SELECT %(kind)s, done.* FROM unnest(%(row_ids)s::bigint[], %(causes)s::text[],
        %(actions)s::text[], %(generations)s::int[], %(codes)s::text[], %(owners)s::uuid[],
        %(details)s::jsonb[]) AS done
"""


@dataclass(frozen=True, slots=True)
class Settled:
    """What was done with an orphan. Interrupted rows carry a code, adopted ones none.

    `detail` goes into the event, as JSON: small, and nothing a user or provider wrote.
    """

    orphan: Orphan
    action: Action
    error_code: str = ""
    detail: str | None = None


class Recovery(ABC):
    """One kind of owned row: orphans settled in bounded batches, a failing row isolated."""

    kind: ClassVar[str]
    model: ClassVar[type[models.Model]]
    parent: ClassVar[str | None] = "conversation"
    owned_states: ClassVar[tuple[str, ...]] = ("running",)
    queued_states: ClassVar[tuple[str, ...]] = ("queued",)
    # how live rows are indexed: by their age, or by their owner
    oldest_first: ClassVar[bool] = False
    batch_rows: ClassVar[int] = bounds.SWEEP_BATCH_ROWS

    def __init__(self) -> None:
        self._owned = OwnedTable(
            kind=self.kind,
            model=self.model,
            parent=self.parent,
            owned_states=self.owned_states,
            queued_states=self.queued_states,
            oldest_first=self.oldest_first,
        )

    @abstractmethod
    def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
        """Adopt or end the locked `orphans` with all their open children, set-wise."""

    @abstractmethod
    def publish(self, settled: Sequence[Settled]) -> None:
        """Say that these rows changed. They are committed."""

    @abstractmethod
    def dispatch(self, pks: Sequence[int]) -> None:
        """Hint to the workers that these rows wait for a claim."""

    def intention(self, orphan: Orphan) -> tuple[Action, str]:
        """Return the action and code a dry run shows. Override where some are adopted."""
        if orphan.waiting:
            return Action.REDISPATCHED, ""
        return Action.INTERRUPTED, orphan.cause.value

    def run(self, *, limit: int | None = None, dry_run: bool = False) -> RecoveryReport:
        """Bury who is dead, then settle every orphan of this kind. Twice changes nothing more.

        Waits until the dead can be told from the living: a second for a lock just missed, up
        to one lease where nobody watched the database before.
        """
        liveness.bury(patient=True)
        return self.settle_orphans(limit=limit, dry_run=dry_run)

    def settle_orphans(
        self, *, limit: int | None = None, dry_run: bool = False
    ) -> RecoveryReport:
        """Settle up to `limit` rows that are orphans by now; `dry_run` only reports them."""
        started = time.monotonic()
        report = RecoveryReport(self.kind)
        with transaction.atomic(durable=True):
            pass  # refuses to run inside another transaction; costs no round trip
        known = failures.held_back(self.kind)
        past = {row_id for row_id, waits in known.items() if waits}
        due = known.keys() - past
        seen: set[int] = set()
        locked: list[Orphan] = []
        while limit is None or report.examined < limit:
            size = (
                self.batch_rows
                if limit is None
                else min(self.batch_rows, limit - report.examined)
            )
            found = self._owned.look(limit=size, past=past)
            page = [orphan for orphan in found if orphan.pk not in seen]
            report.examined += len(page)
            if dry_run:
                for orphan in page:
                    report.show(orphan, *self.intention(orphan))
            elif page:
                locked += self._settle_batch(page, report)
                liveness.keep_pulse()
            # Settled rows fall out of the next page by themselves, and naming them all would
            # make each page dearer than the one before; what comes twice must not come again.
            past.update(orphan.pk for orphan in found if dry_run or orphan.pk in seen)
            seen.update(orphan.pk for orphan in page)
            if len(found) < size:
                break
        if locked:
            self._settle_locked(locked, report)
        if limit is None and not dry_run:
            failures.forget_settled(self.kind, due - report.unsettled)
        report.duration_ms = round((time.monotonic() - started) * 1000)
        if report.examined and not dry_run:
            log.info("recovery.pass", **report.counts())
        return report

    def _settle_locked(self, locked: Sequence[Orphan], report: RecoveryReport) -> None:
        """Give rows another session had locked a second chance, then report them as skipped."""
        time.sleep(LOCKED_PAUSE_SECONDS)
        skipped: list[Orphan] = []
        for start in range(0, len(locked), self.batch_rows):
            skipped += self._settle_batch(locked[start : start + self.batch_rows], report)
            liveness.keep_pulse()
        for orphan in skipped:
            report.note(orphan, "skipped")
        failures.record_skips(self.kind, [orphan.pk for orphan in skipped])

    def _settle_batch(self, batch: Sequence[Orphan], report: RecoveryReport) -> list[Orphan]:
        """Settle `batch` in one transaction, split on an error; return those found locked."""
        try:
            settled, redispatched, locked = self._settle_retrying(batch)
        except Exception as error:
            if is_away(error):
                raise
            if len(batch) > 1:
                half = len(batch) // 2
                return [
                    *self._settle_batch(batch[:half], report),
                    *self._settle_batch(batch[half:], report),
                ]
            code = failures.record_failure(self.kind, batch[0].pk, error)
            report.note(batch[0], "failed", code.value)
            return []
        for done in settled:
            report.note(done.orphan, done.action.value, done.error_code)
        for orphan in redispatched:
            report.note(orphan, Action.REDISPATCHED.value)
        if settled:
            self._hint("publish", settled)
        if redispatched:
            self._hint("dispatch", [orphan.pk for orphan in redispatched])
        return locked

    def _settle_retrying(
        self, batch: Sequence[Orphan]
    ) -> tuple[list[Settled], list[Orphan], list[Orphan]]:
        for attempt in range(1, COLLISION_ATTEMPTS + 1):
            try:
                return self._settle_once(batch)
            except OperationalError as error:
                if not is_collision(error) or attempt == COLLISION_ATTEMPTS:
                    raise
                log.warning(
                    "recovery.retried", kind=self.kind, count=attempt, reason=describe(error)
                )
                # Whoever we collided with finishes first; the spread keeps two sweeps from
                # meeting again.
                time.sleep(random.uniform(0.01, 0.05) * attempt)  # noqa: S311
        raise AssertionError("unreachable")

    def _settle_once(
        self, batch: Sequence[Orphan]
    ) -> tuple[list[Settled], list[Orphan], list[Orphan]]:
        """Lock, test again, write, commit; return the settled, redispatched and locked rows."""
        with transaction.atomic(durable=True):
            locked = self._owned.lock(batch)
            # A later statement than the lock: its snapshot shows what the lock waited for or
            # skipped.
            orphans = self._owned.look(limit=len(batch), among=[orphan.pk for orphan in batch])
            held = [orphan for orphan in orphans if orphan.pk in locked]
            waiting = [orphan for orphan in held if orphan.waiting]
            ending = [orphan for orphan in held if not orphan.waiting]
            if waiting:
                self._owned.dispatch_later([orphan.pk for orphan in waiting])
            settled = list(self.settle(ending)) if ending else []
            if settled:
                _write_events(self.kind, settled)
                failures.clear(self.kind, [done.orphan.pk for done in settled])
        return settled, waiting, [orphan for orphan in orphans if orphan.pk not in locked]

    def _hint(self, hook: str, items: Sequence[Any]) -> None:
        try:
            getattr(self, hook)(items)
        except Exception as error:  # noqa: BLE001 - hints may fail; the rows are committed
            log.warning(
                "recovery.hint_failed", kind=self.kind, action=hook, reason=describe(error)
            )


def _write_events(kind: str, settled: Sequence[Settled]) -> None:
    """Write what was done, one statement for all: through models it took half of a sweep."""
    with connection.cursor() as cursor:
        cursor.execute(
            _WRITE_EVENTS,
            {
                "kind": kind,
                "row_ids": array(done.orphan.pk for done in settled),
                "causes": array(done.orphan.cause for done in settled),
                "actions": array(done.action for done in settled),
                "generations": array(done.orphan.generation for done in settled),
                "codes": array(done.error_code for done in settled),
                "owners": array(done.orphan.owner for done in settled),
                "details": array(done.detail for done in settled),
            },
        )


_registered: dict[str, Recovery] = {}


def register(recovery: Recovery) -> None:
    """Let every sweep settle this kind too. Called from `AppConfig.ready`."""
    _registered[recovery.kind] = recovery


def registered() -> dict[str, Recovery]:
    """Return the recoveries by kind, in the order of their registration."""
    return dict(_registered)
