"""`manage.py revoke_computer USER NAME`: no more jobs there."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from recovery.commands import OperatorCommand, person_named
from work.management import computers
from work.models import WorkJob
from work.transitions.computers import revoke_computer


class Command(OperatorCommand):
    """Takes a computer away from a person's jobs."""

    help = (
        "Admit no more jobs of USER on the computer NAME. Jobs that were admitted go on with "
        "what was true then. Exit status: 0 revoked, 2 there is no such computer, or none "
        "any more."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whose and which."""
        computers.take_whose(parser)

    def handle(self, *_args: object, **options: Any) -> None:
        """Revoke it, and say what still goes on there."""
        name = computers.name_of(options["name"])
        person_id = person_named(options["user"])
        with computers.refusals_of(person_id, name):
            computer = revoke_computer(person_id, name)
        self.stdout.write(f"Revoked: {computer.name}.")
        if left := WorkJob.objects.open().filter(computer=computer).count():
            self.stdout.write(f"{left} of its jobs {'has' if left == 1 else 'have'} not ended.")
