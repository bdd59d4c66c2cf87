"""`manage.py add_computer USER NAME --root PATH`: let a person's jobs work on this machine."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from recovery.commands import OperatorCommand, person_named
from work import bounds
from work.management import computers
from work.models import Computer
from work.transitions.computers import add_computer


class Command(OperatorCommand):
    """Gives a person directories of this machine; doing it twice changes nothing more."""

    help = (
        "Let the coding jobs of USER work in directories of this machine, under the name NAME "
        f"(at most {bounds.COMPUTERS_PER_OWNER} computers a person). Run it as the workers' "
        "user and with their HOLDFAST_HOME: jobs go to the workers of this installation on "
        "this machine alone. Exit status: 0 it is there, 2 refused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whose, how named, where, and what may be done there."""
        computers.take_whose(parser)
        computers.take_limits(parser, roots_required=True, tier=Computer.Tier.CURATED.value)

    def handle(self, *_args: object, **options: Any) -> None:
        """Add it and say so."""
        name = computers.name_of(options["name"])
        roots = computers.roots_of(options["roots"]) or []
        checks = computers.checks_of(options["checks"])
        person_id = person_named(options["user"])
        with computers.refusals():
            computer, added = add_computer(
                person_id,
                name,
                roots=roots,
                tier=Computer.Tier(options["tier"]),
                checks=checks,
            )
        for warning in computers.warnings_of(roots):
            self.stderr.write(warning)
        said = "Added" if added else "It was there already"
        self.stdout.write(f"{said}: {computers.described(computer)}.")
