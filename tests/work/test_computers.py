"""Where a person's jobs may work: what may be said, how much of it, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from recovery.constraints import violated_constraint
from recovery.errors import ErrorCode, Refused
from recovery.hosts import host_id
from tests import factories as make
from tests.support.rivals import Rival, gate
from work import bounds
from work.models import Computer
from work.transitions.computers import add_computer, change_computer, revoke_computer

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path.resolve())


def refusal(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value.code


def person() -> int:
    return make.UserFactory.create().pk


def test_a_computer_is_this_host_with_its_roots_tier_and_checks(root: str) -> None:
    whose = person()
    computer, added = add_computer(
        whose, " laptop ", roots=[root, f"{root}/"], checks={"test": ["make", "test"]}
    )

    assert added
    assert (computer.person_id, computer.name, computer.host_id) == (
        whose,
        "laptop",
        host_id(),
    )
    assert (computer.roots, computer.tier) == ([root], "curated")
    assert computer.checks == {"test": ["make", "test"]}


def test_adding_it_twice_is_adding_it_once(root: str) -> None:
    whose = person()
    first, _ = add_computer(whose, "laptop", roots=[root])
    second, added = add_computer(whose, "laptop", roots=[root])
    assert (first.pk, added) == (second.pk, False)


@pytest.mark.parametrize(
    "other",
    [{"tier": Computer.Tier.SHELL}, {"checks": {"test": ["true"]}}, {"roots": ["/"]}],
    ids=str,
)
def test_the_same_name_for_something_else_is_refused(root: str, other: dict[str, Any]) -> None:
    whose = person()
    add_computer(whose, "laptop", roots=[root])
    again = {"roots": [root], **other}
    assert refusal(lambda: add_computer(whose, "laptop", **again)) == (
        ErrorCode.COMPUTER_NAME_TAKEN
    )
    assert add_computer(person(), "laptop", **again)[1], "another person's names are free"


def test_the_same_name_on_another_host_is_refused(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whose = person()
    add_computer(whose, "laptop", roots=[root])
    monkeypatch.setattr("work.transitions.computers.host_id", lambda: "elsewhere")
    assert refusal(lambda: add_computer(whose, "laptop", roots=[root])) == (
        ErrorCode.COMPUTER_NAME_TAKEN
    )


def test_a_person_has_at_most_8_computers_and_a_revoked_one_counts_no_more(root: str) -> None:
    whose = person()
    for number in range(bounds.COMPUTERS_PER_OWNER):
        add_computer(whose, f"computer-{number}", roots=[root])
    one_more = partial(add_computer, whose, "one-more", roots=[root])
    assert refusal(one_more) == ErrorCode.COMPUTER_LIMIT_REACHED

    revoke_computer(whose, "computer-0")
    one_more()
    assert refusal(lambda: add_computer(whose, "computer-0", roots=[root])) == (
        ErrorCode.COMPUTER_LIMIT_REACHED
    )


def test_two_operators_at_once_do_not_get_past_the_limit(root: str, database_url: str) -> None:
    whose = person()
    for number in range(bounds.COMPUTERS_PER_OWNER - 1):
        add_computer(whose, f"computer-{number}", roots=[root])
    with gate(database_url, "SELECT FROM auth_user WHERE id = %s FOR UPDATE", whose) as held:
        rivals = [
            Rival(partial(add_computer, whose, name, roots=[root])).until_it_waits()
            for name in ("this", "that")
        ]
        held.open()
        errors = [rival.error() for rival in rivals]
    assert [error for error in errors if error is None] == [None]
    assert Computer.objects.count() == bounds.COMPUTERS_PER_OWNER


def test_a_root_is_a_real_directory_here(root: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "inside").mkdir()
    (tmp_path / "a\nb").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "inside")
    whose = person()
    for wrong in (
        "",
        ".",
        "inside",
        "~",
        f"{root}/file",
        f"{root}/missing",
        f"{root}/link",
        f"{root}/a\nb",
        f"{root}/in\x00side",
        f"{root}/\udcff",
        "/" + "x" * bounds.ROOT_MAX_BYTES,
    ):
        code = refusal(partial(add_computer, whose, "laptop", roots=[wrong]))
        assert (wrong, code) == (wrong, ErrorCode.INVALID_ROOT)
    computer, _ = add_computer(whose, "laptop", roots=[f"{root}/./inside/../inside//"])
    assert computer.roots == [f"{root}/inside"]


def test_a_computer_has_1_to_16_roots(root: str, tmp_path: Path) -> None:
    whose = person()
    roots = []
    for number in range(bounds.ROOTS_PER_COMPUTER + 1):
        (tmp_path / str(number)).mkdir()
        roots.append(f"{root}/{number}")
    for wrong in ([], roots):
        code = refusal(partial(add_computer, whose, "laptop", roots=wrong))
        assert code == ErrorCode.INVALID_ROOT
    computer, _ = add_computer(whose, "laptop", roots=roots[1:])
    assert computer.roots == roots[1:]


@pytest.mark.parametrize(
    ("letter", "stored"), [("é", True), ('"', False)], ids=["letters", "quotation marks"]
)
def test_sixteen_roots_of_512_bytes_fit_unless_json_needs_more_for_them(
    tmp_path: Path, letter: str, stored: bool
) -> None:
    roots = []
    for number in range(bounds.ROOTS_PER_COMPUTER):
        path = f"{tmp_path.resolve()}/{number:02}/"
        while (room := bounds.ROOT_MAX_BYTES - len(path.encode())) > 100:
            path += letter * (50 // len(letter.encode())) + "/"
        path += "x" * room
        Path(path).mkdir(parents=True)
        roots.append(path)
    assert {len(root.encode()) for root in roots} == {bounds.ROOT_MAX_BYTES}
    whose = person()
    adding = partial(add_computer, whose, "laptop", roots=roots)
    if stored:
        assert adding()[0].roots == roots
    else:
        assert refusal(adding) == ErrorCode.INVALID_ROOT


@pytest.mark.parametrize(
    "checks",
    [
        {"": ["true"]},
        {"Test": ["true"]},
        {"-x": ["true"]},
        {"a b": ["true"]},
        {"x" * 33: ["true"]},
        {"test": []},
        {"test": [""]},
        {"test": ["\x00"]},
        {f"test-{n}": ["true"] for n in range(bounds.CHECKS_PER_COMPUTER + 1)},
        {"test": ["x" * bounds.CHECKS_MAX_BYTES]},
    ],
    ids=lambda checks: repr(checks)[:24],
)
def test_what_is_no_check_is_refused(root: str, checks: dict[str, list[str]]) -> None:
    whose = person()
    adding = partial(add_computer, whose, "laptop", roots=[root], checks=checks)
    assert refusal(adding) == ErrorCode.INVALID_CHECK
    assert not Computer.objects.exists()


def test_checks_as_large_as_allowed_are_stored(root: str) -> None:
    overhead = len('{"test": [""]}')
    checks = {"test": ["é" * ((bounds.CHECKS_MAX_BYTES - overhead) // 2)]}
    computer, _ = add_computer(person(), "laptop", roots=[root], checks=checks)
    assert computer.checks == checks


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x00", "x" * 101])
def test_a_computer_has_a_name_on_one_line(root: str, name: str) -> None:
    whose = person()
    code = refusal(lambda: add_computer(whose, name, roots=[root]))
    assert code in {ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TEXT}


def test_nobody_has_no_computer(root: str) -> None:
    assert refusal(lambda: add_computer(0, "laptop", roots=[root])) == ErrorCode.NOT_FOUND


def test_a_change_replaces_what_is_given_and_keeps_the_rest(root: str, tmp_path: Path) -> None:
    whose = person()
    (tmp_path / "inside").mkdir()
    add_computer(whose, "laptop", roots=[root], checks={"test": ["true"]})

    computer, changed = change_computer(whose, "laptop", tier=Computer.Tier.SHELL)
    assert changed
    assert (computer.tier, computer.checks) == ("shell", {"test": ["true"]})
    computer, changed = change_computer(whose, "laptop", roots=[f"{root}/inside"], checks={})
    assert changed
    assert (computer.roots, computer.checks) == ([f"{root}/inside"], {})
    assert not change_computer(whose, "laptop", roots=[f"{root}/inside"])[1]
    computer.refresh_from_db()
    assert (computer.tier, computer.roots) == ("shell", [f"{root}/inside"])


def test_roots_are_changed_where_they_are(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whose = person()
    add_computer(whose, "laptop", roots=[root])
    monkeypatch.setattr("work.transitions.computers.host_id", lambda: "elsewhere")
    assert refusal(lambda: change_computer(whose, "laptop", roots=["/"])) == (
        ErrorCode.COMPUTER_ELSEWHERE
    )
    assert change_computer(whose, "laptop", tier=Computer.Tier.PROBE)[1]


def test_a_revoked_computer_is_gone_and_its_name_is_free(root: str) -> None:
    whose = person()
    add_computer(whose, "laptop", roots=[root])
    revoked = revoke_computer(whose, "laptop")
    assert revoked.revoked_at is not None

    for act in (
        lambda: revoke_computer(whose, "laptop"),
        lambda: change_computer(whose, "laptop", tier=Computer.Tier.PROBE),
    ):
        assert refusal(act) == ErrorCode.NOT_FOUND
    another, added = add_computer(whose, "laptop", roots=[root])
    assert added
    assert another.pk != revoked.pk


def test_a_foreign_computer_is_like_one_that_does_not_exist(root: str) -> None:
    add_computer(person(), "laptop", roots=[root])
    stranger = person()
    for act in (
        lambda: revoke_computer(stranger, "laptop"),
        lambda: change_computer(stranger, "laptop", tier=Computer.Tier.SHELL),
    ):
        assert refusal(act) == ErrorCode.NOT_FOUND


def test_the_database_keeps_a_computer_with_its_person_and_host(root: str) -> None:
    computer, _ = add_computer(person(), "laptop", roots=[root])
    for change in ({"host_id": "elsewhere"}, {"person_id": person()}):
        with pytest.raises(IntegrityError) as refused, transaction.atomic():
            Computer.objects.filter(pk=computer.pk).update(**change)
        assert violated_constraint(refused.value) == "work_computer_identity_is_fixed"
