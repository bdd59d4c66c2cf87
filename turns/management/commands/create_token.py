"""`manage.py create_token USER`: a bearer token for the API."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser

from recovery.commands import OperatorCommand
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
        people = get_user_model()
        try:
            user = people._default_manager.get_by_natural_key(options["user"])
        except people.DoesNotExist:
            raise CommandError("there is no such user", returncode=2) from None
        self.stdout.write(f"Authorization: Bearer {create_token(user.pk)}")
