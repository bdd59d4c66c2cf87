"""`manage.py computers [USER]`: where jobs may work, and what they may do there."""

from __future__ import annotations

import shlex
from typing import Any

from django.core.management.base import CommandParser

from recovery.commands import OperatorCommand, person_named
from recovery.hosts import host_id
from work.models import Computer


class Command(OperatorCommand):
    """Lists computers with their roots and checks."""

    help = (
        "List the computers of USER, or of everybody: whose, name, tier, and whether it is "
        "this machine; then its roots, and its checks with their commands. Exit status: 0, "
        "2 there is no such user."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whose, and whether revoked ones are of interest."""
        parser.add_argument(
            "user", nargs="?", metavar="USER", help="a username (default: everybody)"
        )
        parser.add_argument("--revoked", action="store_true", help="list revoked ones too")

    def handle(self, *_args: object, **options: Any) -> None:
        """Print a line a computer, and one a root and check."""
        listed = Computer.objects.select_related("person").order_by("person_id", "pk")
        if options["user"] is not None:
            listed = listed.filter(person_id=person_named(options["user"]))
        if not options["revoked"]:
            listed = listed.filter(revoked_at__isnull=True)
        here = host_id()
        for computer in listed:
            where = "here" if computer.host_id == here else "elsewhere"
            end = "" if computer.revoked_at is None else "  revoked"
            name = computer.person.get_username()
            self.stdout.write(f"{name}  {computer.name}  {computer.tier}  {where}{end}")
            for root in computer.roots:
                self.stdout.write(f"    root   {root}")
            for check, words in sorted(computer.checks.items()):
                self.stdout.write(f"    check  {check}: {shlex.join(words)}")
        if not listed:
            self.stdout.write("There is none.")
