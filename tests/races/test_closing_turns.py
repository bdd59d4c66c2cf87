"""Children cannot slip under a turn that is being closed; no deadlock, whoever comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pgtrigger
import psycopg
import pytest

from recovery.constraints import violated_constraint
from recovery.errors import ErrorCode
from recovery.reports import RecoveryReport
from tests import factories as make
from tests.races.conftest import GateOn
from tests.support.rivals import Rival
from tests.support.settled import assert_settled, every_row
from turns import transitions
from turns.models import TextChunk, Turn
from turns.recovery import TurnRecovery
from turns.textlog import FLUSH, UNWRITTEN

pytestmark = pytest.mark.django_db(transaction=True)


def recover() -> RecoveryReport:
    return TurnRecovery().settle_orphans()


@pytest.fixture
def turn(orphan: Turn) -> Turn:
    return orphan


@pytest.fixture
def session(database_url: str) -> Iterator[psycopg.Connection]:
    """The session of a runtime that does not know yet."""
    with closing(psycopg.connect(database_url)) as session:
        yield session


CHILDREN: dict[str, Callable[[Turn], Any]] = {
    "textchunk": lambda turn: make.TextChunkFactory.create(turn=turn, seq=2, text="4."),
    "receipt": lambda turn: make.ReceiptFactory.create(turn=turn),
    "providerstep": lambda turn: make.ProviderStepFactory.create(
        turn=turn, sequence=2, completed=True
    ),
    "toolstep": lambda turn: make.ToolStepFactory.create(
        turn=turn, provider_step=turn.provider_steps.get(), sequence=1
    ),
}


@pytest.mark.parametrize("child", CHILDREN)
def test_a_child_that_waits_for_recovery_is_refused(
    turn: Turn, gate_on: GateOn, child: str
) -> None:
    """Recovery first: the insert waits for the lock on its parent, and then has none."""
    if child == "receipt":  # a turn has one; this one had not come to it
        with pgtrigger.ignore("turns.Receipt:goes_with_its_parent"):
            turn.receipt.delete()
    with gate_on("message", turn) as held:
        recovery = Rival(recover).until_it_waits()
        insert = Rival(lambda: CHILDREN[child](turn)).until_it_waits()
        assert insert.waits_for(recovery.pid)
        held.open()

    assert recovery.result().interrupted == 1
    error = insert.error()
    assert isinstance(error, Exception)
    assert violated_constraint(error) == f"turns_{child}_child_fence"  # type: ignore[arg-type]
    assert_settled(turn, "interrupted", code="runtime_lost", text="It is ")


def test_a_chunk_that_comes_first_is_part_of_the_text(
    turn: Turn, session: psycopg.Connection
) -> None:
    """Insert first: a sweep does not wait for it, and the next one folds what it wrote."""
    put(session, turn, seq=2, text="4.")

    assert recover().skipped == 1
    assert Turn.objects.get().state == "running"
    session.commit()
    assert recover().interrupted == 1
    assert_settled(turn, "interrupted", code="runtime_lost", text="It is 4.")


def test_an_end_that_waits_for_a_chunk_folds_it(
    turn: Turn, session: psycopg.Connection
) -> None:
    """Lock, then fold in a later statement: one statement would read what was before."""
    put(session, turn, seq=2, text="4.")
    fence = make.fence_of(turn)
    cancel = Rival(
        lambda: transitions.finish_turn(
            fence, Turn.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT
        )
    ).until_it_waits()
    assert cancel.waits_for(session.info.backend_pid)
    session.commit()

    cancel.result()
    assert_settled(turn, "failed", code="provider_timeout", text="It is 4.")


def test_a_cancel_that_waits_for_a_chunk_folds_it(
    turn: Turn, session: psycopg.Connection
) -> None:
    put(session, turn, seq=2, text="4.")
    owner = turn.conversation.owner_id
    cancel = Rival(lambda: transitions.request_cancel(owner, turn.pk)).until_it_waits()
    session.commit()

    cancel.result()
    assert_settled(turn, "cancelled", code="cancelled", text="It is 4.")


def test_the_flush_waits_for_nobody(
    turn: Turn, gate_on: GateOn, session: psycopg.Connection
) -> None:
    """A turn that is being closed is busy once, and lost on the next tick."""
    flush = {
        "ids": [turn.pk],
        "generations": [turn.generation],
        "tokens": [turn.claim_token],
        "seqs": [2],
        "texts": ["4."],
    }
    with gate_on("message", turn) as held:
        recovery = Rival(recover).until_it_waits()
        assert session.execute(FLUSH, flush, prepare=False).rowcount == 0
        assert session.execute(UNWRITTEN, flush).fetchall() == [(turn.pk, 2, False)]
        session.commit()
        held.open()
        recovery.result()

    assert session.execute(FLUSH, flush, prepare=False).rowcount == 0
    assert session.execute(UNWRITTEN, flush).fetchall() == [(turn.pk, 2, True)]
    session.commit()
    assert_settled(turn, "interrupted", code="runtime_lost", text="It is ")


STALE_WRITES = {
    "text": "INSERT INTO turns_textchunk (turn_id, seq, generation, text) "
    "VALUES (%(turn)s, 2, 1, 'late')",
    "receipt": "UPDATE turns_receipt SET usage = '{}' WHERE turn_id = %(turn)s",
    "provider step": "UPDATE turns_providerstep SET state = 'completed', error_code = '' "
    "WHERE turn_id = %(turn)s",
    "tool step": "INSERT INTO turns_toolstep (turn_id, provider_step_id, generation, sequence, "
    "state, error_code, call_id, item_id, name, effect, arguments, arguments_digest, "
    "invocation_key, result, result_digest, result_bytes) SELECT turn_id, id, 1, 9, "
    "'requested', '', 'late', '', 'webhook_post', 'external', '', '', gen_random_uuid(), '', "
    "'', 0 FROM turns_providerstep WHERE turn_id = %(turn)s LIMIT 1",
    "start": "UPDATE turns_toolstep SET state = 'running', started_at = now() "
    "WHERE turn_id = %(turn)s",
    "outcome": "UPDATE turns_toolstep SET result = 'late' WHERE turn_id = %(turn)s",
    "answer": "UPDATE turns_message SET text = 'late' WHERE id = %(answer)s",
    "finish": "UPDATE turns_turn SET state = 'completed', error_code = '', "
    "finished_at = now(), write_mark = write_mark + 1 WHERE id = %(turn)s",
    "mark": "UPDATE turns_turn SET write_mark = write_mark + 1 WHERE id = %(turn)s",
    "claim": "UPDATE turns_turn SET state = 'running', finished_at = NULL, error_code = '', "
    "generation = 2, write_mark = 2::bigint << 32, owner = gen_random_uuid() "
    "WHERE id = %(turn)s",
}


@pytest.mark.parametrize("write", STALE_WRITES)
def test_a_stale_owner_cannot_write_even_by_raw_sql(
    turn: Turn, session: psycopg.Connection, write: str
) -> None:
    make.ToolStepFactory.create(turn=turn, provider_step__sequence=2, running=True)
    recover()
    before = every_row()

    with pytest.raises(psycopg.errors.CheckViolation):
        session.execute(
            STALE_WRITES[write], {"turn": turn.pk, "answer": turn.assistant_message_id}
        )
    session.rollback()
    assert every_row() == before


@pytest.mark.parametrize("write", ["finish", "mark"])
def test_a_stale_write_already_waiting_behind_the_end_is_refused(
    turn: Turn, gate_on: GateOn, session: psycopg.Connection, write: str
) -> None:
    """An UPDATE that waits for the row lock is judged by the row it finds then."""
    late = psycopg.connect(session.info.dsn, password=session.info.password)
    with gate_on("message", turn) as held:
        recovery = Rival(recover).until_it_waits()

        def stale() -> None:
            with late:
                late.execute(STALE_WRITES[write], {"turn": turn.pk})

        waiting = Rival(stale)
        waiting.pid = late.info.backend_pid
        waiting.until_it_waits()
        held.open()
        recovery.result()

    assert isinstance(waiting.error(), psycopg.errors.CheckViolation)
    assert_settled(turn, "interrupted", code="runtime_lost", text="It is ")


def test_late_chunks_of_a_turn_never_reach_the_next_one(turn: Turn) -> None:
    """failure H24"""
    recover()
    following = make.TurnFactory.create(running=True, conversation=turn.conversation)
    make.TextChunkFactory.create(turn=following, text="fresh ")
    for seq in range(2, 52):
        with pytest.raises(Exception, match="turns_textchunk_child_fence"):
            TextChunk.objects.create(turn=turn, seq=seq, generation=1, text="late ")

    assert "".join(TextChunk.objects.values_list("text", flat=True)) == "fresh "
    assert_settled(turn, "interrupted", code="runtime_lost", text="It is ")


def put(session: psycopg.Connection, turn: Turn, *, seq: int, text: str) -> None:
    """Insert a chunk, as its owner would, without committing it yet."""
    session.execute(
        "INSERT INTO turns_textchunk (turn_id, seq, generation, text) VALUES (%s, %s, 1, %s)",
        [turn.pk, seq, text],
    )
