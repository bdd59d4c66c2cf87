"""What the commands about a person's computers have in common."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from django.core.management.base import CommandError, CommandParser

from recovery.commands import EXIT_USAGE
from recovery.errors import Refused
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
        f"{bounds.ROOTS_PER_COMPUTER}",
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
    return roots


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
            checks |= checked_checks({name: words})
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


def described(computer: Computer) -> str:
    """Return one line about a computer, without its roots."""
    roots, checks = len(computer.roots), len(computer.checks)
    return (
        f"{computer.name}: {computer.tier}, "
        f"{roots} root{'' if roots == 1 else 's'}, {checks} check{'' if checks == 1 else 's'}"
    )
