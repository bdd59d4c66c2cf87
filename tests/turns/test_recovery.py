"""TurnRecovery: which turns it takes up, what it leaves behind, and that twice is once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now

from recovery.models import RecoveryEvent, RecoveryFailure
from recovery.reports import RecoveryReport
from tests import factories as make
from tests.support.runtimes import watch_database
from tests.support.settled import assert_settled, every_row
from turns import dispatch, transitions
from turns.models import Conversation, Message, ProviderStep, Receipt, ToolStep, Turn
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The hints that would have gone to the broker."""
    given: list[int] = []
    monkeypatch.setattr("turns.recovery.dispatch_turn", given.append)
    return given


def recover() -> RecoveryReport:
    return TurnRecovery().settle_orphans()


def test_everything_a_dead_turn_consists_of_ends_in_one_pass() -> None:
    """failure H01, behaviour E5, A8"""
    turn = make.TurnFactory.create(orphaned=True, asked=True)
    text = "x" * 300
    make.TextChunkFactory.create(turn=turn, text=text)
    done = make.ToolStepFactory.create(turn=turn, provider_step__sequence=2, succeeded=True)
    make.ToolStepFactory.create(turn=turn, provider_step=done.provider_step)
    make.ToolStepFactory.create(turn=turn, provider_step=done.provider_step, running=True)
    revision = Conversation.objects.get().revision

    report = recover()

    assert (report.examined, report.interrupted, report.all_settled) == (1, 1, True)
    assert report.rows == [
        {
            "id": str(turn.pk),
            "cause": "runtime_lost",
            "action": "interrupted",
            "error_code": "runtime_lost",
        }
    ]
    assert_settled(turn, "interrupted", code="runtime_lost", text=text)
    assert (Receipt.objects.get().usage, ProviderStep.objects.get(sequence=1).usage) == (
        None,
        None,
    )
    assert [(t.state, t.error_code) for t in ToolStep.objects.order_by("sequence")] == [
        ("succeeded", ""),
        ("interrupted", "not_started"),
        ("interrupted", "outcome_unknown"),
    ]
    assert Conversation.objects.get().revision == revision + 1
    event = RecoveryEvent.objects.get()
    assert (event.kind, event.row_id, event.cause, event.generation, event.owner) == (
        "turns", turn.pk, "runtime_lost", 1, turn.owner,
    )  # fmt: skip
    again = transitions.admit_turn(turn.conversation.owner_id, turn.conversation_id, "And?")
    assert again.created


def test_a_turn_that_had_asked_nothing_yet_ends_empty() -> None:
    """failure H02"""
    turn = make.TurnFactory.create(orphaned=True)
    recover()

    assert_settled(turn, "interrupted", code="runtime_lost")
    assert Message.objects.filter(role="assistant").count() == 1


def test_a_second_recovery_changes_no_row() -> None:
    for turn in make.TurnFactory.create_batch(3, orphaned=True, asked=True):
        make.TextChunkFactory.create(turn=turn)
    recover()
    before = every_row()

    report = recover()

    assert (report.examined, report.rows) == (0, [])
    assert every_row() == before


@pytest.mark.parametrize(
    ("end", "code"),
    [("lost", "runtime_lost"), ("expired", "lease_expired"), ("stopped", "runtime_stopped")],
)
def test_how_the_runtime_ended_is_why_the_turn_ended(end: str, code: str) -> None:
    runtime = make.RuntimeFactory.create(**{end: True})
    turn = make.TurnFactory.create(running=True, asked=True, owner=runtime.pk)
    recover()

    assert_settled(turn, "interrupted", code=code)


def test_a_turn_whose_owner_was_never_seen_is_an_orphan() -> None:
    turn = make.TurnFactory.create(running=True, asked=True, owner=uuid4())
    recover()

    assert_settled(turn, "interrupted", code="runtime_lost")


def test_a_turn_past_its_deadline_and_grace_is_ended_though_its_owner_lives() -> None:
    overdue = make.TurnFactory.create(overdue=True, asked=True)
    within_grace = make.TurnFactory.create(
        running=True, deadline_at=Now() - timedelta(seconds=5)
    )
    recover()

    assert_settled(overdue, "interrupted", code="deadline_passed")
    within_grace.refresh_from_db()
    assert within_grace.state == "running"


def test_living_work_and_ended_work_are_left_alone() -> None:
    make.TurnFactory.create(running=True, asked=True)
    for end in ("completed", "failed", "cancelled", "interrupted"):
        make.TurnFactory.create(**{end: True})
    before = every_row()

    assert recover().examined == 0
    assert every_row() == before


def test_a_cancelled_orphan_is_interrupted() -> None:
    """Recovery knows one end; the request to cancel stays on the row."""
    turn = make.TurnFactory.create(orphaned=True, asked=True, cancel_requested_at=Now())
    recover()

    assert_settled(turn, "interrupted", code="runtime_lost")


class TestQueued:
    def test_a_turn_admitted_a_moment_ago_is_left_alone(self, hints: list[int]) -> None:
        """failure H10"""
        make.TurnFactory.create()

        assert recover().examined == 0
        assert hints == []

    def test_a_turn_whose_hint_was_lost_is_dispatched_again_with_back_off(
        self, hints: list[int]
    ) -> None:
        turn = make.TurnFactory.create(next_dispatch_at=Now() - timedelta(seconds=1))
        report = recover()

        assert (report.redispatched, report.interrupted) == (1, 0)
        assert hints == [turn.pk]
        turn.refresh_from_db()
        assert (turn.state, turn.dispatch_count) == ("queued", 1)
        assert recover().examined == 0
        assert not RecoveryEvent.objects.exists()

    def test_a_busy_pool_is_not_a_dead_one(self, hints: list[int]) -> None:
        """Before its queue deadline a turn waits, however often it was dispatched."""
        due = Now() - timedelta(seconds=1)
        turn = make.TurnFactory.create(next_dispatch_at=due, dispatch_count=30)
        recover()

        turn.refresh_from_db()
        assert turn.state == "queued"
        assert hints == [turn.pk]

    def test_past_its_queue_deadline_a_turn_was_never_started(self, hints: list[int]) -> None:
        turn = make.TurnFactory.create(queue_deadline_at=Now() - timedelta(seconds=1))
        recover()

        assert_settled(turn, "interrupted", code="never_started")
        assert hints == []


class TestPoison:
    @pytest.fixture
    def poison(self) -> Iterator[list[Turn]]:
        """Ten rows whose recovery raises, whoever does it."""
        turns = make.TurnFactory.create_batch(10, orphaned=True, asked=True)
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "RAISE EXCEPTION 'malformed stored arguments'; END $$"
            )
            cursor.execute(
                "CREATE TRIGGER poison AFTER UPDATE ON turns_turn FOR EACH ROW WHEN ("
                f"NEW.id = ANY('{{{','.join(str(turn.pk) for turn in turns)}}}') "
                "AND NEW.state = 'interrupted') EXECUTE FUNCTION poison()"
            )
        yield turns
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER poison ON turns_turn")
            cursor.execute("DROP FUNCTION poison")

    def test_ten_poison_rows_among_2000_hold_up_nobody(self, poison: list[Turn]) -> None:
        """failure H05"""
        copy_turn(poison[0], 995)
        poison[5].refresh_from_db()
        copy_turn(poison[5], 995)
        report = recover()

        assert (report.examined, report.interrupted, report.failed) == (2_000, 1_990, 10)
        bad = sorted(turn.pk for turn in poison)
        failures = RecoveryFailure.objects.order_by("row_id")
        assert [failure.row_id for failure in failures] == bad
        assert {failure.error_code for failure in failures} == {"internal_error"}
        assert all("malformed" not in failure.reason for failure in failures)
        assert sorted(Turn.objects.open().values_list("pk", flat=True)) == bad
        before = every_row()

        # as long as they are held back the next pass has nothing to do
        failures.update(next_retry_at=Now() + timedelta(minutes=10))
        assert recover().examined == 0
        assert every_row() == before


def copy_turn(turn: Turn, count: int) -> None:
    """Add `count` turns like this one, each in a conversation of its own."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH c AS (
                INSERT INTO turns_conversation (owner_id, title, revision, rewritten_revision)
                SELECT c.owner_id, '', 0, 0 FROM turns_conversation c, generate_series(1, %(n)s)
                WHERE c.id = %(conversation)s RETURNING id),
            u AS (
                INSERT INTO turns_message (conversation_id, role, state, text, digest,
                                           finished_at)
                SELECT id, 'user', 'complete', 'Why?', '', now() FROM c
                RETURNING id, conversation_id),
            a AS (
                INSERT INTO turns_message (conversation_id, role, state, text, digest)
                SELECT id, 'assistant', 'streaming', '', '' FROM c
                RETURNING id, conversation_id)
            INSERT INTO turns_turn SELECT (jsonb_populate_record(t, jsonb_build_object(
                'id', nextval(pg_get_serial_sequence('turns_turn', 'id')),
                'conversation_id', u.conversation_id, 'user_message_id', u.id,
                'assistant_message_id', a.id))).*
            FROM turns_turn t, u JOIN a USING (conversation_id) WHERE t.id = %(turn)s
            """,
            {"n": count, "conversation": turn.conversation_id, "turn": turn.pk},
        )


class TestCommand:
    @pytest.fixture(autouse=True)
    def seen_database(self) -> None:
        watch_database()

    def run(self, *arguments: str) -> tuple[str, int]:
        out = StringIO()
        try:
            call_command("recover_turns", *arguments, stdout=out, stderr=StringIO())
        except SystemExit as ended:
            return out.getvalue(), int(str(ended.code))
        return out.getvalue(), 0

    def test_it_settles_and_says_so_in_json(self) -> None:
        turn = make.TurnFactory.create(orphaned=True, asked=True)
        out, status = self.run("--json")
        report = json.loads(out)

        assert status == 0
        assert {k: report[k] for k in ("kind", "examined", "interrupted", "failed")} == {
            "kind": "turns", "examined": 1, "interrupted": 1, "failed": 0
        }  # fmt: skip
        assert report["rows"][0]["id"] == str(turn.pk)
        assert_settled(turn, "interrupted", code="runtime_lost")
        again = json.loads(self.run("--json")[0])
        assert (again["examined"], again["rows"]) == (0, [])

    def test_a_dry_run_changes_nothing(self) -> None:
        turn = make.TurnFactory.create(orphaned=True, asked=True)
        before = every_row()
        out, status = self.run("--dry-run")

        assert status == 0
        assert str(turn.pk) in out
        assert every_row() == before

    def test_a_limit_is_kept(self) -> None:
        make.TurnFactory.create_batch(3, orphaned=True)
        self.run("--limit", "2")

        assert Turn.objects.open().count() == 1

    def test_wrong_usage_is_told(self) -> None:
        with pytest.raises(CommandError):
            self.run("--limit", "0")

    def test_its_hints_have_left_when_it_ends(self) -> None:
        make.TurnFactory.create(next_dispatch_at=Now() - timedelta(seconds=1))
        out, status = self.run("--json")

        assert (json.loads(out)["redispatched"], status) == (1, 0)
        assert dispatch.flush(0)
