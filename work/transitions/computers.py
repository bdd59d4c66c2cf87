"""Where a person's jobs may work: added, changed and revoked by an operator.

Each locks the person first, as the admission of a job does: a job's snapshot is of one state of
its computer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import structlog
from django.db import transaction
from django.db.models.functions import Now

from recovery.errors import ErrorCode, Refused
from recovery.hosts import host_id
from turns.transitions.conversations import is_storable, lock_person, storable_line
from work import bounds
from work.models import Computer
from work.models.computers import ROOTS_MAX_BYTES

log = structlog.get_logger(__name__)

Checks = Mapping[str, Sequence[str]]

_CHECK_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@transaction.atomic(durable=True)
def add_computer(
    person_id: int,
    name: str,
    *,
    roots: Iterable[str],
    tier: Computer.Tier = Computer.Tier.CURATED,
    checks: Checks | None = None,
) -> tuple[Computer, bool]:
    """Return the person's computer of this name on this host, and whether it is new.

    Raises:
        Refused: the person has another one of this name, or too many; or a value is none that a
            computer may have. Nothing is written.
    """
    name = _checked_name(name)
    said = {
        "roots": checked_roots(roots),
        "tier": Computer.Tier(tier),
        "checks": checked_checks(checks or {}),
    }
    lock_person(person_id)
    mine = Computer.objects.filter(person_id=person_id, revoked_at__isnull=True)
    known = mine.filter(name=name).first()
    if known is not None:
        if known.host_id != host_id() or any(
            getattr(known, field) != value for field, value in said.items()
        ):
            raise Refused(ErrorCode.COMPUTER_NAME_TAKEN)
        return known, False
    if mine.count() >= bounds.COMPUTERS_PER_OWNER:
        raise Refused(ErrorCode.COMPUTER_LIMIT_REACHED)
    computer = Computer.objects.create(
        person_id=person_id, name=name, host_id=host_id(), **said
    )
    _log_on_commit("computer.added", computer)
    return computer, True


@transaction.atomic(durable=True)
def change_computer(
    person_id: int,
    name: str,
    *,
    roots: Iterable[str] | None = None,
    tier: Computer.Tier | None = None,
    checks: Checks | None = None,
) -> tuple[Computer, bool]:
    """Return the computer with what was given in place of what it had, and whether it differs.

    Jobs admitted before keep what was true at their admission.

    Raises:
        Refused: there is no such computer, it is another machine, or a value is none that a
            computer may have. Nothing is written.
    """
    said: dict[str, Any] = {}
    if roots is not None:
        said["roots"] = checked_roots(roots)
    if tier is not None:
        said["tier"] = Computer.Tier(tier)
    if checks is not None:
        said["checks"] = checked_checks(checks)
    lock_person(person_id)
    computer = _named(person_id, name)
    if "roots" in said and computer.host_id != host_id():
        raise Refused(ErrorCode.COMPUTER_ELSEWHERE)
    changed = [field for field, value in said.items() if getattr(computer, field) != value]
    if changed:
        for field in changed:
            setattr(computer, field, said[field])
        computer.save(update_fields=changed)
        _log_on_commit("computer.changed", computer)
    return computer, bool(changed)


@transaction.atomic(durable=True)
def revoke_computer(person_id: int, name: str) -> Computer:
    """Return the computer, where no job can be admitted any more.

    Jobs that were admitted go on: what they may do was fixed then. Cancel them to stop them.

    Raises:
        Refused: the person has no such computer, or it was revoked before.
    """
    lock_person(person_id)
    computer = _named(person_id, name)
    computer.revoked_at = Now()
    computer.save(update_fields=["revoked_at"])
    computer.refresh_from_db(fields=["revoked_at"])
    _log_on_commit("computer.revoked", computer)
    return computer


def checked_roots(roots: Iterable[str]) -> list[str]:
    """Return the roots, each once, in their order.

    Raises:
        Refused: there is none, there are too many, or one is no real directory here.
    """
    listed = list(dict.fromkeys(checked_root(root) for root in roots))
    if (
        not 0 < len(listed) <= bounds.ROOTS_PER_COMPUTER
        or _json_bytes(listed) > ROOTS_MAX_BYTES
    ):
        raise Refused(ErrorCode.INVALID_ROOT)
    return listed


def checked_root(root: str) -> str:
    """Return the root as it is stored. It leads through no link: paths inside are compared to
    it as text.

    Raises:
        Refused: it is not the absolute path of a directory that is here, as itself.
    """
    if not is_storable(root) or not root.startswith("/"):
        raise Refused(ErrorCode.INVALID_ROOT)
    plain = os.path.normpath(root).replace("//", "/")
    if (
        not plain.isprintable()
        or len(plain.encode()) > bounds.ROOT_MAX_BYTES
        or os.path.realpath(plain) != plain
        or not os.path.isdir(plain)  # noqa: PTH112 - text in, text compared
    ):
        raise Refused(ErrorCode.INVALID_ROOT)
    return plain


def checked_checks(checks: Checks) -> dict[str, list[str]]:
    """Return the checks as they are stored: a name, and the words of its command.

    Raises:
        Refused: there are too many or too long ones, or one has no name or no command.
    """
    listed = {name: list(words) for name, words in checks.items()}
    for name, words in listed.items():
        if not _CHECK_NAME.fullmatch(name) or not words or not words[0]:
            raise Refused(ErrorCode.INVALID_CHECK)
        if not all(map(is_storable, words)):
            raise Refused(ErrorCode.INVALID_CHECK)
    if (
        len(listed) > bounds.CHECKS_PER_COMPUTER
        or _json_bytes(listed) > bounds.CHECKS_MAX_BYTES
    ):
        raise Refused(ErrorCode.INVALID_CHECK)
    return listed


def _json_bytes(value: object) -> int:
    """Return the size that the database will bound: jsonb is shown with the same separators."""
    return len(json.dumps(value, ensure_ascii=False).encode())


def _checked_name(name: str) -> str:
    name = storable_line(name, bounds.COMPUTER_NAME_MAX_CHARS)
    if not name.isprintable() or not name:
        raise Refused(ErrorCode.INVALID_REQUEST)
    return name


def _named(person_id: int, name: str) -> Computer:
    mine = Computer.objects.filter(person_id=person_id, revoked_at__isnull=True)
    computer = mine.filter(name=_checked_name(name)).first()
    if computer is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return computer


def _log_on_commit(event: str, computer: Computer) -> None:
    pk, person_id = computer.pk, computer.person_id
    transaction.on_commit(lambda: log.info(event, computer_id=pk, user_id=person_id))
