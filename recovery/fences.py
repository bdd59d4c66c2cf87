"""The proof that a writer still owns the row it writes to.

An owned row carries `generation` (claim adds 1), `claim_token` (random for each claim) and
`write_mark`: the generation in its high 32 bits, a count of writes in its low 32 bits. A CHECK
ties the mark to the generation and a trigger refuses an update that leaves the mark where it
was, so a writer without the current generation is stopped by the database even when it forgets
to ask (kernel: stale and careless writers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db.models import BigIntegerField, F
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Cast

from recovery.errors import StaleFence

GENERATION_SHIFT_BITS: Final = 32
WRITE_COUNT_MASK: Final = (1 << GENERATION_SHIFT_BITS) - 1

# For raw set-wise writes under a lock: the row keeps its generation and counts one more write.
NEXT_MARK_SQL: Final = (
    f"(generation::bigint << {GENERATION_SHIFT_BITS}) | ((write_mark + 1) & {WRITE_COUNT_MASK})"
)


def marked(generation: int) -> CombinedExpression:
    """Return the mark of one more write by the holder of `generation`.

    The high bits come from the writer's own proof, the low bits from the row, so that an owner,
    a cancel and a sweep never disturb each other's count.
    """
    counted = (F("write_mark") + 1).bitand(WRITE_COUNT_MASK)
    return counted.bitor(generation << GENERATION_SHIFT_BITS)


def marked_by_row() -> CombinedExpression:
    """Return the mark of one more write by a lock holder that owns nothing (cancel, sweep)."""
    generation = Cast(F("generation"), BigIntegerField()).bitleftshift(GENERATION_SHIFT_BITS)
    counted = (F("write_mark") + 1).bitand(WRITE_COUNT_MASK)
    return CombinedExpression(generation, CombinedExpression.BITOR, counted)


def claimed_mark(generation: int) -> int:
    """Return the first mark of a freshly claimed `generation`: no writes counted yet."""
    return generation << GENERATION_SHIFT_BITS


@dataclass(frozen=True, slots=True)
class Fence:
    """Which row is owned, under which generation, and the token of the claim that gave it."""

    pk: int
    generation: int
    token: UUID

    def require(self, generation: int, token: UUID | None) -> None:
        """Return when the locked row still carries this claim.

        Raises:
            StaleFence: another claim, or none, holds it now. Nothing has been written.
        """
        if (generation, token) != (self.generation, self.token):
            raise StaleFence

    def next_mark(self) -> CombinedExpression:
        """Return the `write_mark` that proves this generation to the database."""
        return marked(self.generation)
