"""`manage.py create_token USER`: a bearer token for the API."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from recovery.commands import OperatorCommand, person_named
from turns.tokens import create_token


class Command(OperatorCommand):
    """Makes a token and shows it once; only its digest is kept."""

    help = (
        "Make an API token for USER (a username) and print it as the last word of the last "
        "line. It is shown this once: only its digest is kept."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whose token it is."""
        parser.add_argument("user", metavar="USER", help="the username of an existing account")

    def handle(self, *_args: object, **options: Any) -> None:
        """Store the digest, print the token."""
        token = create_token(person_named(options["user"]))
        self.stdout.write(f"Authorization: Bearer {token}")
