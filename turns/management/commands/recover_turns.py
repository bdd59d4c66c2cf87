"""`manage.py recover_turns`: settle the turns of dead processes now."""

from __future__ import annotations

from recovery.commands import RecoverCommand
from turns import dispatch, events
from turns.lifecycles import KIND


class Command(RecoverCommand):
    """Ends turns whose process died as interrupted, and dispatches waiting ones again."""

    kind = KIND
    hints = (dispatch.flush, events.flush)
    help = (
        "End every turn whose process died, that ran past its deadline, or that nobody started "
        "in time, as interrupted; dispatch waiting turns again. Running it twice changes "
        "nothing more. Exit status: 0 every candidate was settled, 1 some were not, 2 wrong "
        "usage."
    )
