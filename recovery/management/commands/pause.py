"""`manage.py pause [turns] [work]`: let no new work begin."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from recovery.commands import ReleaseCommand
from recovery.switches import State


class Command(ReleaseCommand):
    """Stops admission, and with --disable claims too. It holds until `resume`."""

    help = (
        "Let no new work begin, on every host, until `resume`: requests are answered 503 "
        "`paused`, and what was admitted goes on (draining). With --disable, work that waits "
        "is not started either. What runs is never touched. Without a kind: all of them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the kinds, and how far to go."""
        super().add_arguments(parser)
        parser.add_argument(
            "--disable",
            action="store_true",
            help="start nothing that waits either; it ends never_started past its queue "
            "deadline",
        )

    def handle(self, *_args: object, **options: Any) -> None:
        """Set the switches."""
        self.switch(options["kinds"], State.DISABLED if options["disable"] else State.DRAINING)
