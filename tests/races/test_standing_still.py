"""A process that stands still inside a transaction loses it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import psycopg
import pytest
from django.db import connection, transaction

from recovery.database_errors import is_away
from recovery.errors import ErrorCode
from recovery.models import RecoveryFailure
from recovery.runner import Orphan, Settled
from tests import factories as make
from tests.support.settled import assert_settled
from tests.support.waiting import wait_until
from turns import transitions
from turns.confirmed import confirmed
from turns.models import Turn
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)


def stand_still(database_url: str) -> None:
    """Return when the server has ended our connection, idle within its transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
    mine = connection.connection.info.backend_pid
    with psycopg.connect(database_url, autocommit=True) as outside:
        wait_until(
            lambda: (
                not outside.execute(
                    "SELECT FROM pg_stat_activity WHERE pid = %s", [mine]
                ).fetchall()
            ),
            "the session is ended",
        )


async def test_a_transition_that_stood_still_is_made_again(database_url: str) -> None:
    turn = await _made(running=True, asked=True)
    fence = make.fence_of(turn)
    stood_still = False

    def finish() -> Turn:
        nonlocal stood_still
        if not stood_still:
            stood_still = True
            with transaction.atomic():
                stand_still(database_url)
                Turn.objects.filter(pk=turn.pk).update(error_code="")
        return transitions.finish_turn(
            fence, Turn.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT
        )

    ended = await confirmed(finish, lambda: None)
    assert (ended.state, ended.error_code) == ("failed", "provider_timeout")


async def _made(**traits: bool) -> Turn:
    turn: Turn = await confirmed(lambda: make.TurnFactory.create(**traits), lambda: None)
    return turn


def test_a_sweep_that_stood_still_blames_no_row(database_url: str) -> None:
    turn = make.TurnFactory.create(orphaned=True, asked=True)

    class Sleepy(TurnRecovery):
        def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
            stand_still(database_url)
            return super().settle(orphans)

    with pytest.raises(Exception) as raised:  # noqa: PT011 - whichever class the driver gives it
        Sleepy().settle_orphans()
    assert is_away(raised.value)
    assert not RecoveryFailure.objects.exists()

    assert TurnRecovery().settle_orphans().interrupted == 1
    assert_settled(turn, "interrupted", code="runtime_lost")
