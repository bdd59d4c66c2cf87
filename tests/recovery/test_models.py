"""Each constraint and trigger of the kernel's own tables is violated once, by raw SQL."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from recovery.database_errors import database_cause
from recovery.models import RecoveryEvent, RecoveryFailure, Runtime
from tests.support.runtimes import runtime_row, watch_database

pytestmark = pytest.mark.django_db


def refused(constraint: str, sql: str, *values: Any) -> None:
    with (
        pytest.raises(IntegrityError) as caught,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(sql, values)
    cause = database_cause(caught.value)
    assert cause is not None
    assert cause.diag.constraint_name == constraint


def event(**columns: Any) -> RecoveryEvent:
    given = {
        "kind": "turns",
        "row_id": 1,
        "cause": "runtime_lost",
        "action": "interrupted",
        "generation": 1,
        "error_code": "runtime_lost",
        **columns,
    }
    return RecoveryEvent.objects.create(**given)


@pytest.mark.parametrize(
    ("constraint", "change"),
    [
        ("recovery_runtime_stopped_with_reason", "stopped_at = now()"),
        ("recovery_runtime_stopped_with_reason", "stop_reason = 'runtime_lost'"),
        ("recovery_runtime_stopped_with_reason", "stopped_at = now(), stop_reason = 'other'"),
        ("recovery_runtime_lock_is_whole", "lock_key = 1"),
        ("recovery_runtime_lock_is_whole", "lock_backend_pid = 1"),
        ("recovery_runtime_only_locks_are_missed", "lock_missing_since = now()"),
        ("recovery_runtime_identity_is_fixed", "pid = pid + 1"),
        ("recovery_runtime_identity_is_fixed", "role = 'web'"),
        ("recovery_runtime_identity_is_fixed", "started_at = now() - interval '1 d'"),
    ],
)
def test_a_runtime_row_is_sound(constraint: str, change: str) -> None:
    row = runtime_row()
    refused(constraint, f"UPDATE recovery_runtime SET {change} WHERE id = %s", row.pk)


def test_a_role_is_a_word() -> None:
    for role in ("", "Web", "web worker", "w1"):
        with pytest.raises(IntegrityError, match="role_is_a_word"), transaction.atomic():
            runtime_row(role=role)


def test_a_stopped_runtime_never_lives_again() -> None:
    row = runtime_row()
    stopped = "stopped_at = now(), stop_reason = 'runtime_stopped'"
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE recovery_runtime SET {stopped} WHERE id = %s", [row.pk])
    for change in ("stopped_at = NULL, stop_reason = ''", "renewed_at = now()", stopped):
        refused(
            "recovery_runtime_end_is_final",
            f"UPDATE recovery_runtime SET {change} WHERE id = %s",
            row.pk,
        )
    assert Runtime.objects.living().count() == 0


def test_there_is_one_pulse() -> None:
    watch_database()
    refused(
        "recovery_pulse_is_one_row",
        "INSERT INTO recovery_pulse (id, last_at, unbroken_since) VALUES (2, now(), now())",
    )
    refused(
        "recovery_pulse_pkey",
        "INSERT INTO recovery_pulse (id, last_at, unbroken_since) VALUES (1, now(), now())",
    )


def test_recovery_events_are_append_only() -> None:
    row = event()
    for sql in (
        "UPDATE recovery_recoveryevent SET error_code = 'lease_expired' WHERE id = %s",
        "DELETE FROM recovery_recoveryevent WHERE id = %s",
    ):
        refused("recovery_recoveryevent_append_only", sql, row.pk)


@pytest.mark.parametrize(
    ("constraint", "columns"),
    [
        ("cause_known", {"cause": "weather"}),
        ("says_how_it_ended", {"action": "interrupted", "error_code": ""}),
        ("says_how_it_ended", {"action": "adopted", "error_code": "runtime_lost"}),
        ("says_how_it_ended", {"action": "redispatched", "error_code": ""}),
        ("detail_bounded", {"detail": {"text": "x" * 5_000}}),
    ],
)
def test_a_recovery_event_is_sound(constraint: str, columns: dict[str, Any]) -> None:
    event()
    event(action="adopted", error_code="", detail={"attempts": 1})
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        event(**columns)


def test_there_is_one_failure_a_row_and_it_counts_something() -> None:
    RecoveryFailure.objects.create(kind="turns", row_id=1, failed_count=1)
    with pytest.raises(IntegrityError, match="one_per_row"), transaction.atomic():
        RecoveryFailure.objects.create(kind="turns", row_id=1, failed_count=1)
    with pytest.raises(IntegrityError, match="counts_something"), transaction.atomic():
        RecoveryFailure.objects.create(kind="turns", row_id=2)


def test_no_row_names_what_a_user_wrote() -> None:
    rows = [runtime_row(), event(), RecoveryFailure(kind="turns", row_id=3, failed_count=1)]
    assert [str(row) for row in rows] == [
        f"worker {rows[0].pk}",
        "turns 1 interrupted",
        "turns 3",
    ]
