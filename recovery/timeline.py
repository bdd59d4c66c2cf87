"""What happened to an owned row, in order, in the words of its rows. No content, no provider
ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from recovery.models import Action, RecoveryEvent

# Of a row that runs: the detail of an event by which its claim ends and it goes on. Nothing
# else remembers when that claim was.
CLAIMED_DETAIL_SQL: Final = "json_build_object('claimed_at', claimed_at)::text"


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, and when; None where no row has its time."""

    at: datetime | None
    what: str
    error_code: str = ""


def in_order(moments: Iterable[Moment]) -> list[Moment]:
    """Return the moments oldest first, those of the same instant in their order, and last of
    all those without a time."""
    listed = list(moments)
    dated = [(moment.at, moment) for moment in listed if moment.at is not None]
    dated.sort(key=lambda pair: pair[0])
    return [
        *(moment for _, moment in dated),
        *(moment for moment in listed if moment.at is None),
    ]


def at(time: datetime | None, what: str, error_code: str = "") -> Iterator[Moment]:
    """Yield the moment if it came."""
    if time is not None:
        yield Moment(time, what, error_code)


def of_recovery(kind: str, row_id: int) -> Iterator[Moment]:
    """Yield what recovery did with the row; of a claim that another followed also when it was
    and whose."""
    for event in RecoveryEvent.objects.filter(kind=kind, row_id=row_id).order_by("pk"):
        if event.action == Action.ADOPTED:
            claimed_at = (event.detail or {}).get("claimed_at")
            yield from at(
                datetime.fromisoformat(claimed_at) if claimed_at else None,
                f"claimed by {event.owner}, generation {event.generation}",
            )
            what = f"released for adoption ({event.cause}), generation {event.generation}"
        else:
            what = f"recovery: {event.action} ({event.cause})"
        # most ends are named for their cause: said once is enough
        code = "" if event.error_code == event.cause else event.error_code
        yield from at(event.created_at, what, code)
