"""`manage.py recover_turns`: settle the turns of dead processes now."""

from __future__ import annotations

from typing import Any, ClassVar

from recovery.commands import RecoverCommand
from turns import dispatch, events

HINTS_SECONDS = 2.0


class Command(RecoverCommand):
    """Ends turns whose process died as interrupted, and dispatches waiting ones again."""

    kind: ClassVar[str] = "turns"
    help = (
        "End every turn whose process died, that ran past its deadline, or that nobody started "
        "in time, as interrupted; dispatch waiting turns again. Running it twice changes "
        "nothing more. Exit status: 0 every candidate was settled, 1 some were not, 2 wrong "
        "usage."
    )

    def handle(self, *args: object, **options: Any) -> None:
        """Recover, and let the hints leave before the process ends."""
        try:
            super().handle(*args, **options)
        finally:
            dispatch.flush(HINTS_SECONDS)
            events.flush(HINTS_SECONDS)
