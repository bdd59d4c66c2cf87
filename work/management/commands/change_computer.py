"""`manage.py change_computer USER NAME`: other roots, another tier, other checks."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from recovery.commands import EXIT_USAGE, OperatorCommand, person_named
from work.management import computers
from work.models import Computer
from work.transitions.computers import change_computer


class Command(OperatorCommand):
    """Replaces what is named, keeps the rest; doing it twice changes nothing more."""

    help = (
        "Change where the jobs of USER may work on the computer NAME, or what they may do "
        "there: what is given replaces what was there. Jobs that were admitted before keep "
        "what was true then. Exit status: 0 it is so, 2 refused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whose, which, and what is to be otherwise."""
        computers.take_whose(parser)
        computers.take_limits(parser, roots_required=False, tier=None)
        parser.add_argument("--no-checks", action="store_true", help="take all checks away")

    def handle(self, *_args: object, **options: Any) -> None:
        """Change it and say so."""
        if options["no_checks"] and options["checks"]:
            raise CommandError("--check and --no-checks: one of them", returncode=EXIT_USAGE)
        name = computers.name_of(options["name"])
        roots = computers.roots_of(options["roots"])
        checks = {} if options["no_checks"] else computers.checks_of(options["checks"])
        tier = Computer.Tier(options["tier"]) if options["tier"] else None
        if roots is None and checks is None and tier is None:
            raise CommandError("say what is to change", returncode=EXIT_USAGE)
        person_id = person_named(options["user"])
        with computers.refusals_of(person_id, name):
            computer, changed = change_computer(
                person_id, name, roots=roots, tier=tier, checks=checks
            )
        for warning in computers.warnings_of(roots):
            self.stderr.write(warning)
        said = "Changed" if changed else "It was so already"
        self.stdout.write(f"{said}: {computers.described(computer)}.")
