"""What recovery means for a turn: it cannot be continued, so it ends honestly.

A text turn has no identity at a provider under which a broken stream could be taken up again
(contract, "Text turns"). An orphan is interrupted with what was committed; a queued turn whose
hint was lost is dispatched again, until its queue deadline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import structlog

from recovery.errors import ErrorCode
from recovery.models import Action
from recovery.runner import Orphan, Recovery, Settled
from turns import events
from turns.dispatch import dispatch_turn
from turns.lifecycles import KIND
from turns.models import Turn
from turns.transitions import interrupt_turns

log = structlog.get_logger(__name__)

# Lines for one batch: thousands of them say less than their count, and are a fifth of a sweep.
# Each row has its `RecoveryEvent`.
LOGGED_ROWS_MAX: Final = 100


class TurnRecovery(Recovery):
    """Ends orphaned turns as interrupted and dispatches waiting ones again."""

    kind: ClassVar[str] = KIND
    model = Turn
    parent = "conversation"

    def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
        """End the orphans and all they consist of, one set of statements for each cause."""
        by_cause: dict[ErrorCode, list[Orphan]] = defaultdict(list)
        for orphan in orphans:
            by_cause[ErrorCode(orphan.cause.value)].append(orphan)
        for code, alike in by_cause.items():
            interrupt_turns(
                [orphan.pk for orphan in alike],
                code,
                conversation_ids=[o.parent_pk for o in alike if o.parent_pk is not None],
            )
        return [Settled(o, Action.INTERRUPTED, o.cause.value) for o in orphans]

    def publish(self, settled: Sequence[Settled]) -> None:
        """Say that these conversations changed; log the ends, each unless there are many."""
        for done in settled[:LOGGED_ROWS_MAX]:
            log.info(
                "turn.interrupted",
                turn_id=done.orphan.pk,
                error_code=done.error_code,
                generation=done.orphan.generation,
                owner=done.orphan.owner,
            )
        if len(settled) > LOGGED_ROWS_MAX:
            log.info("turn.more_interrupted", count=len(settled) - LOGGED_ROWS_MAX)
        events.announce_many(
            o.parent_pk for o in (done.orphan for done in settled) if o.parent_pk is not None
        )

    def dispatch(self, pks: Sequence[int]) -> None:
        """Hint again that these turns wait."""
        for pk in pks:
            dispatch_turn(pk)
