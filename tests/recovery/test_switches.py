"""The release switch: durable, one for each kind, set by `pause` and `resume`."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from recovery.models import ReleaseSwitch
from recovery.switches import State, release, set_release

pytestmark = pytest.mark.django_db(transaction=True)


def told(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out)
    return out.getvalue()


def test_what_nobody_paused_is_open() -> None:
    assert release("turns") == State.OPEN
    assert not ReleaseSwitch.objects.exists()


def test_pause_drains_disables_and_resume_opens_again() -> None:
    assert told("pause", "turns") == "turns: draining (was open)\n"
    assert release("turns") == State.DRAINING
    assert told("pause", "turns", "--disable") == "turns: disabled (was draining)\n"
    assert release("turns") == State.DISABLED
    assert told("resume") == "turns: open (was disabled)\nwork: open (was open)\n"
    assert release("turns") == State.OPEN


def test_pausing_twice_changes_nothing_more() -> None:
    told("pause", "turns")
    since = ReleaseSwitch.objects.get().changed_at
    assert told("pause", "turns") == "turns: draining (was draining)\n"
    assert ReleaseSwitch.objects.get().changed_at == since


def test_one_kind_does_not_pause_another() -> None:
    set_release("work", State.DISABLED)
    assert release("turns") == State.OPEN


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_an_unknown_kind_is_wrong_usage_and_changes_nothing(command: str) -> None:
    with pytest.raises(CommandError, match="no kind 'weather'") as refused:
        told(command, "turns", "weather")
    assert refused.value.returncode == 2
    assert not ReleaseSwitch.objects.exists()


@pytest.mark.parametrize(
    ("rule", "columns"),
    [
        ("state_known", {"kind": "turns", "state": "closed"}),
        ("kind_is_a_word", {"kind": "text turns", "state": "open"}),
    ],
)
def test_a_switch_is_sound(rule: str, columns: dict[str, str]) -> None:
    with pytest.raises(IntegrityError, match=rule), transaction.atomic():
        ReleaseSwitch.objects.create(**columns)


def test_a_switch_is_named_by_kind_and_state() -> None:
    set_release("turns", State.DRAINING)
    assert str(ReleaseSwitch.objects.get()) == "turns draining"
