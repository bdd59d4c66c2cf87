"""A failure is described without what it says."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from psycopg import errors

from recovery.database_errors import is_away, is_collision
from recovery.errors import BoundExceeded, ErrorCode, ProviderFailed, Refused
from recovery.models import RecoveryFailure
from recovery.redaction import DESCRIPTION_MAX_CHARS, describe

CANARY = "the prompt of a person"


def test_an_error_of_ours_is_its_class_and_code() -> None:
    assert describe(ProviderFailed(ErrorCode.PROVIDER_QUOTA)) == "ProviderFailed provider_quota"
    assert describe(Refused(ErrorCode.PAUSED)) == "Refused paused"
    assert (
        describe(BoundExceeded(ErrorCode.MESSAGE_TOO_LONG)) == "BoundExceeded message_too_long"
    )


def test_a_strangers_error_is_its_class() -> None:
    assert describe(ValueError(CANARY)) == "ValueError"
    kind = type("E" * 500, (Exception,), {})
    assert len(describe(kind(CANARY))) == DESCRIPTION_MAX_CHARS


@pytest.mark.django_db
def test_a_database_error_names_the_rule_and_no_row() -> None:
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        RecoveryFailure.objects.create(kind="turns", row_id=1, reason=CANARY)
    assert CANARY in str(caught.value.__cause__)
    assert (
        describe(caught.value)
        == "IntegrityError 23514 recovery_recoveryfailure_counts_something"
    )


def test_it_is_known_whose_fault_an_error_is() -> None:
    def raised(cause: Exception) -> OperationalError:
        error = OperationalError(CANARY)
        error.__cause__ = cause
        return error

    assert is_away(raised(errors.AdminShutdown()))
    assert is_away(raised(errors.CannotConnectNow()))
    assert is_away(raised(errors.TooManyConnections()))
    assert is_away(raised(errors.OperationalError()))
    assert is_away(InterfaceError("connection already closed"))
    assert not is_away(raised(errors.LockNotAvailable()))
    assert not is_away(ValueError())
    assert is_collision(raised(errors.DeadlockDetected()))
    assert is_collision(raised(errors.SerializationFailure()))
    assert not is_collision(raised(errors.LockNotAvailable()))


@pytest.mark.django_db(transaction=True)
def test_a_real_lost_session_is_away() -> None:
    with pytest.raises(OperationalError) as caught, connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert is_away(caught.value)
    connection.close()
