"""`manage.py resume [turns] [work]`: let new work begin again."""

from __future__ import annotations

from typing import Any

from recovery.commands import ReleaseCommand
from recovery.switches import State


class Command(ReleaseCommand):
    """Takes a pause back."""

    help = (
        "Let new work begin again after `pause`; what waits is started by the next sweep. "
        "Without a kind: all of them."
    )

    def handle(self, *_args: object, **options: Any) -> None:
        """Set the switches."""
        self.switch(options["kinds"], State.OPEN)
