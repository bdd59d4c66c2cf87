"""The bases of the commands people run: `recover_turns`, `recover_work`, `pause`, `resume`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection

from recovery import liveness, runner
from recovery.database_errors import is_away
from recovery.redaction import describe
from recovery.reports import RecoveryReport
from recovery.sweep import sweep
from recovery.switches import State, set_release

EXIT_UNSETTLED: Final = 1
EXIT_USAGE: Final = 2
HINTS_SECONDS: Final = 2.0


class OperatorCommand(BaseCommand):
    """Says in one line that the database is away; `--traceback` shows the rest."""

    requires_system_checks = []

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command."""
        try:
            return super().execute(*args, **options)
        except DatabaseError as error:
            if not is_away(error):
                raise
            raise CommandError(f"the database is away: {describe(error)}") from error


def person_named(username: str) -> int:
    """Return the id of the account.

    Raises:
        CommandError: there is none; exit status 2.
    """
    people = get_user_model()
    try:
        return int(people._default_manager.get_by_natural_key(username).pk)
    except people.DoesNotExist:
        raise CommandError("there is no such user", returncode=EXIT_USAGE) from None


class RecoverCommand(OperatorCommand):
    """Recovers one kind of row now, by the same function as the periodic sweep.

    `hints` wait until what recovery announced has left, before the process ends.
    """

    kind: ClassVar[str]
    hints: ClassVar[Sequence[Callable[[float], object]]] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options shared by all recover commands."""
        parser.add_argument(
            "--dry-run", action="store_true", help="show the orphans there are, change nothing"
        )
        parser.add_argument(
            "--limit", type=int, metavar="ROWS", help="at most so many rows (default: all)"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object a pass")
        parser.add_argument(
            "--watch",
            action="store_true",
            help="go on, one pass every HOLDFAST_SWEEP_SECONDS (default: 1), until Ctrl-C; "
            "passes without a candidate print nothing",
        )

    def handle(self, *_args: object, **options: Any) -> None:
        """Run one pass, or one after another; exit 1 when the last left a candidate."""
        limit: int | None = options["limit"]
        if limit is not None and limit < 1:
            raise CommandError("--limit takes a number of rows from 1", returncode=EXIT_USAGE)
        if self.kind not in runner.registered():
            raise CommandError(f"nothing recovers {self.kind} here", returncode=EXIT_USAGE)
        try:
            report = self._watch(options) if options["watch"] else self._pass(options)
        finally:
            for flush in self.hints:
                flush(HINTS_SECONDS)
        if not report.all_settled:
            raise SystemExit(EXIT_UNSETTLED)

    def _watch(self, options: dict[str, Any]) -> RecoveryReport:
        """Pass after pass until Ctrl-C, through outages too; return the last report."""
        report = RecoveryReport(self.kind)
        try:
            report = self._pass(options)
            while True:
                time.sleep(settings.HOLDFAST_SWEEP_SECONDS)
                try:
                    report = self._pass(options, quiet=True)
                except DatabaseError as error:
                    if not is_away(error):
                        raise
                    connection.close()
                    self.stderr.write(f"The database is away: {describe(error)}")
        except KeyboardInterrupt:
            return report

    def _pass(self, options: dict[str, Any], *, quiet: bool = False) -> RecoveryReport:
        """Run one pass and show it; a quiet one only if it found something."""
        reports = sweep(
            options["limit"], kinds=[self.kind], dry_run=options["dry_run"], patient=True
        )
        report = reports[self.kind]
        if report.examined or not quiet:
            self._show(report, options)
        return report

    def _show(self, report: RecoveryReport, options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(report.as_dict()))
        else:
            for row in report.rows:
                self.stdout.write(
                    f"{row['id']}  {row['cause']}  {row['action']}  {row['error_code'] or '-'}"
                )
            self.stdout.write(_sentence(report, dry_run=options["dry_run"]))
        if options["dry_run"] and (in_doubt := liveness.in_doubt_count()):
            look = (
                "runtime looks dead and is" if in_doubt == 1 else "runtimes look dead and are"
            )
            self.stderr.write(
                f"{in_doubt} {look} not buried by a dry run; what is owned there is not listed."
            )


def _sentence(report: RecoveryReport, *, dry_run: bool) -> str:
    if dry_run:
        return f"{report.kind}: {report.examined} would be taken up; nothing was changed."
    return f"{report.kind}: {report.counted}, in {report.duration_ms} ms."


class ReleaseCommand(OperatorCommand):
    """Sets the release switch of some kinds of work."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the kinds."""
        parser.add_argument(
            "kinds", nargs="*", metavar="KIND", help=f"of {', '.join(runner.registered())}"
        )

    def switch(self, kinds: list[str], state: State) -> None:
        """Set the switches and say what each was before; doing it twice changes nothing."""
        known = runner.registered()
        for kind in kinds:
            if kind not in known:
                raise CommandError(f"there is no kind {kind!r} here", returncode=EXIT_USAGE)
        for kind in kinds or known:
            before = set_release(kind, state)
            self.stdout.write(f"{kind}: {state.value} (was {before.value})")
