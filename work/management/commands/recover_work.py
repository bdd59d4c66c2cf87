"""`manage.py recover_work`: settle the jobs of dead processes now."""

from __future__ import annotations

from recovery.commands import RecoverCommand
from turns import events
from work import dispatch
from work.lifecycles import KIND


class Command(RecoverCommand):
    """Gives jobs whose process died to another worker, or ends them honestly."""

    kind = KIND
    hints = (dispatch.flush, events.flush)
    help = (
        "Release every job whose process died, so that another worker adopts it (adopted), and "
        "end with an honest report what cannot go on: three adoptions used up, past its "
        "deadline, or waiting for a worker for too long (interrupted). Dispatch waiting jobs "
        "again. Running it twice changes nothing more. Exit status: 0 every candidate was "
        "settled, 1 some were not, 2 wrong usage."
    )
