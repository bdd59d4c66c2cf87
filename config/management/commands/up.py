"""`manage.py up`: everything on this machine, in the foreground."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from config.embedded.postgres import PostgresUnavailable
from config.embedded.stack import Address, Stack, cluster, only_one
from config.embedded.supervisor import StartFailed


class Command(BaseCommand):
    """Start everything, say where it answers, keep it running until Ctrl-C."""

    help = "Start database, model, worker and web on this machine and keep them running."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options; people script them."""
        parser.add_argument(
            "--port",
            type=int,
            help="port of the page (default: 8000, else a free one)",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="print {url, database_url, username, password} when everything answers",
        )

    def handle(self, *_: Any, port: int | None, **options: Any) -> None:
        """Run until a signal asks to stop."""
        home = settings.HOME
        home.prepare()
        try:
            with only_one(home):
                stack = Stack(home, port=port)
                try:
                    with stack.supervisor:
                        self._announce(stack.start(), as_json=options["json"])
                        stack.supervisor.run()
                        self.stderr.write(
                            "Stopping; a second Ctrl-C does not wait for answers."
                        )
                finally:
                    stack.stopped()
        except (StartFailed, PostgresUnavailable) as failure:
            raise CommandError(str(failure)) from None
        except OperationalError as failure:
            raise CommandError(
                f"the database does not answer ({type(failure).__name__})"
            ) from None
        except KeyboardInterrupt:
            self.stderr.write("Stopped before everything was up.")

    def _announce(self, address: Address, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(dataclasses.asdict(address)))
        else:
            password = address.password or "(the one you chose)"
            data = str(settings.HOLDFAST_HOME)
            database = cluster(settings.HOME)
            if settings.EMBEDDED_DATABASE and not database.is_relative_to(settings.HOME.path):
                data += f" and {database}"
            self.stdout.write(
                "\nHoldfast is running.\n\n"
                f"  Page    {address.url}\n"
                f"  Admin   {address.url}admin/\n"
                f"  Login   {address.username} / {password}\n"
                f"  Data    {data}\n\n"
                "Ctrl-C stops it. Your data stays."
            )
        self.stdout.flush()
