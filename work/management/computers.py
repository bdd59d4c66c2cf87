"""What the commands about a person's computers have in common."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from recovery.commands import EXIT_USAGE
from recovery.errors import ErrorCode, Refused
from turns.transitions.conversations import storable_line
from work import bounds
from work.models import Computer
from work.transitions.computers import checked_checks, checked_root

TIERS: Final = "probe reads; curated also edits and runs the checks; shell runs any command"


def take_whose(parser: CommandParser) -> None:
    """Take the person and the name of the computer."""
    parser.add_argument("user", metavar="USER", help="the username of an existing account")
    parser.add_argument(
        "name", metavar="NAME", help="what the person knows the computer by, say laptop"
    )


def take_limits(parser: CommandParser, *, roots_required: bool, tier: str | None) -> None:
    """Take where jobs may work and what they may do there."""
    parser.add_argument(
        "--root",
        action="append",
        dest="roots",
        metavar="PATH",
        required=roots_required,
        help="a directory of this machine that jobs may work in; again for each of up to "
        f"{bounds.ROOTS_PER_COMPUTER}. None lies in HOLDFAST_HOME; in one around it, "
        "HOLDFAST_HOME stays closed to jobs",
    )
    parser.add_argument(
        "--tier",
        choices=Computer.Tier.values,
        default=tier,
        help=f"{TIERS} (default: {tier or 'as it is'})",
    )
    parser.add_argument(
        "--check",
        action="append",
        dest="checks",
        metavar="NAME=COMMAND",
        help="a command that jobs may run by its name, without a shell, say "
        f"test='make test'; again for each of up to {bounds.CHECKS_PER_COMPUTER}",
    )


def name_of(said: str) -> str:
    """Return the name of a computer as it is stored.

    Raises:
        CommandError: it is none.
    """
    most = bounds.COMPUTER_NAME_MAX_CHARS
    try:
        name = storable_line(said, most)
    except Refused:
        name = ""
    if not name or not name.isprintable():
        code = ErrorCode.INVALID_REQUEST.value
        raise CommandError(
            f"NAME: it is one line of 1 to {most} printable characters ({code})",
            returncode=EXIT_USAGE,
        )
    return name


def roots_of(said: Sequence[str] | None) -> list[str] | None:
    """Return the roots that were given, as they are stored.

    Raises:
        CommandError: one of them is none; the text says which.
    """
    if said is None:
        return None
    roots = []
    for root in said:
        with refusals(f"--root {root}: "):
            roots.append(checked_root(root))
        home = _home()
        if os.path.commonpath([roots[-1], home]) == home:
            raise CommandError(
                f"--root {root}: it lies in HOLDFAST_HOME ({home}), where no job works "
                f"({ErrorCode.INVALID_ROOT.value})",
                returncode=EXIT_USAGE,
            )
    return roots


def warnings_of(roots: Sequence[str] | None) -> Iterator[str]:
    """Yield a line for each root in which something stays closed to jobs."""
    home = _home()
    for root in roots or ():
        if os.path.commonpath([root, home]) == root:
            yield (
                f"--root {root} holds HOLDFAST_HOME ({home}): no job works there, and checks "
                "and commands cannot read it."
            )


def _home() -> str:
    return os.path.realpath(settings.HOLDFAST_HOME)


def checks_of(said: Sequence[str] | None) -> dict[str, list[str]] | None:
    """Return the checks that were given: a name, and the words of its command.

    Raises:
        CommandError: one of them is none; the text says which.
    """
    if said is None:
        return None
    checks: dict[str, list[str]] = {}
    for text in said:
        name, _, command = text.partition("=")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise CommandError(f"--check {name}: {error}", returncode=EXIT_USAGE) from None
        with refusals(f"--check {name}: "):
            known = checked_checks({name: words})
        if name in checks:
            raise CommandError(
                f"--check {name}: it is given twice ({ErrorCode.INVALID_CHECK.value})",
                returncode=EXIT_USAGE,
            )
        checks |= known
    return checks


@contextmanager
def refusals(about: str = "") -> Iterator[None]:
    """Tell the operator why a value or a request is refused, with its code; exit status 2."""
    try:
        yield
    except Refused as refused:
        raise CommandError(
            f"{about}{refused.code.label} ({refused.code.value})", returncode=EXIT_USAGE
        ) from None


@contextmanager
def refusals_of(person_id: int, name: str) -> Iterator[None]:
    """Do the same for a computer of this name; of one that was revoked it says so."""
    with refusals():
        try:
            yield
        except Refused as refused:
            named = Computer.objects.filter(person_id=person_id, name=name)
            if refused.code == ErrorCode.NOT_FOUND and named.exists():
                raise CommandError(
                    f"This computer is revoked already. ({refused.code.value})",
                    returncode=EXIT_USAGE,
                ) from None
            raise


def described(computer: Computer) -> str:
    """Return one line about a computer, without its roots."""
    roots, checks = len(computer.roots), len(computer.checks)
    return (
        f"{computer.name}: {computer.tier}, "
        f"{roots} root{'' if roots == 1 else 's'}, {checks} check{'' if checks == 1 else 's'}"
    )
