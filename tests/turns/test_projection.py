"""A snapshot and a change are each true of one moment, and each is one statement."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from recovery.errors import ErrorCode
from tests.factories import (
    ConversationFactory,
    MessageFactory,
    TextChunkFactory,
    ToolStepFactory,
    TurnFactory,
    fence_of,
)
from turns import frames, pages, projection
from turns.models import Conversation, Message, Turn
from turns.panels import Panel, panels
from turns.projection import Change, Cursor, Watched
from turns.transitions import finish_turn

pytestmark = pytest.mark.django_db(transaction=True)


def changes(*watched: Watched) -> list[Change | None]:
    """Return what is new at each place, as the live reader asks for it."""
    found: list[Change | None] = [None] * len(watched)
    with connection.cursor() as cursor:
        cursor.execute(projection.changes_statement(), projection.changes_parameters(watched))
        for row in cursor.fetchall():
            found[row[0] - 1] = projection.read_change(row[1:])
    return found


def watched(turn: Turn, cursor: Cursor) -> Watched:
    return Watched(turn.conversation_id, turn.conversation.owner_id, cursor)


def test_a_snapshot_and_all_changes_are_one_statement_each() -> None:
    turns = [TurnFactory(running=True, asked=True) for _ in range(5)]
    for turn in turns:
        TextChunkFactory(turn=turn)
        ToolStepFactory(turn=turn, provider_step=turn.provider_steps.get())
    with CaptureQueriesContext(
        connection,
    ) as queries:
        projection.snapshot(turns[0].conversation_id, turns[0].conversation.owner_id)
    assert len(queries) == 1 + 1  # and the factory's row of the owner
    asked = [watched(turn, Cursor(0)) for turn in turns]
    with CaptureQueriesContext(connection) as queries:
        found = changes(*asked)
    assert len(queries) == 1
    assert [one is not None and one.turn_id for one in found] == [turn.pk for turn in turns]


def test_a_snapshot_is_never_blank_doubled_or_backwards_while_turns_end() -> None:
    """The text of a turn moves from its chunks into its message in one commit."""
    conversation = ConversationFactory()
    place = (conversation.pk, conversation.owner_id)
    stop = threading.Event()
    words = [f"{number} " for number in range(6)]

    def write() -> None:
        try:
            while not stop.is_set():
                turn = TurnFactory(conversation=conversation, running=True, asked=True)
                for word in words:
                    TextChunkFactory(turn=turn, text=word)
                finish_turn(fence_of(turn), Turn.State.COMPLETED, last_seq=len(words))
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    seen: dict[str, int] = {}
    try:
        while len(seen) < 12 and writer.is_alive():
            shown = projection.snapshot(*place)
            assert shown is not None
            for message in shown.messages:
                if message.role == "user" or message.text is None:
                    continue
                count = len(message.text.split())
                assert message.text == "".join(words[:count])
                assert count >= seen.get(message.id, 0)
                assert message.state == "streaming" or count == len(words)
                seen[message.id] = count
            if shown.turn is not None and shown.turn.is_open:
                assert shown.turn.assistant.text == "".join(words[: shown.turn.seq])
    finally:
        stop.set()
        writer.join()
    assert len(seen) >= 12


def test_a_change_brings_only_text_not_seen() -> None:
    turn = TurnFactory(running=True, asked=True)
    for text in ("a", "b", "c"):
        TextChunkFactory(turn=turn, text=text)
    at = Cursor(turn.conversation.revision, turn.pk, 1)
    (change,) = changes(watched(turn, at))
    assert change is not None
    assert change.chunks == ((2, "b"), (3, "c"))
    assert change.turns is None


def test_a_place_of_somebody_else_or_nobody_has_no_change_and_no_snapshot() -> None:
    turn = TurnFactory(running=True)
    mine = ConversationFactory()
    foreign = Watched(turn.conversation_id, mine.owner_id, Cursor(0))
    nothing = Watched(999_999, mine.owner_id, Cursor(0))
    assert changes(foreign, nothing) == [None, None]
    assert projection.snapshot(turn.conversation_id, mine.owner_id) is None
    assert projection.turn(turn.pk, mine.owner_id) is None
    assert projection.message(turn.user_message_id, mine.owner_id) is None
    assert pages.messages(turn.conversation_id, mine.owner_id, limit=1) is None


def test_an_answer_keeps_its_tool_steps_and_its_reason_after_its_end() -> None:
    """behaviour AD10, D7: what is shown of a step never includes the provider's own ids."""
    turn = TurnFactory(running=True, asked=True)
    step = ToolStepFactory(turn=turn, provider_step=turn.provider_steps.get(), running=True)
    finish_turn(
        fence_of(turn), Turn.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT, last_seq=0
    )
    shown = projection.message(turn.assistant_message_id, turn.conversation.owner_id)
    assert shown is not None
    assert shown.error_message == "The model service stopped answering."
    assert [one.state for one in shown.steps] != ["running"]
    assert step.call_id not in shown.model_dump_json()


def test_markdown_is_rendered_for_ended_answers_alone() -> None:
    conversation = ConversationFactory()
    answer = MessageFactory(conversation=conversation, answered=True, text="**bold**")
    question = MessageFactory(conversation=conversation, text="**bold**")
    found = pages.messages(conversation.pk, conversation.owner_id, limit=9)
    assert found is not None
    html = {message.id: message.html for message in found.messages}
    assert html == {
        str(answer.pk): "<p><strong>bold</strong></p>\n",
        str(question.pk): None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2.3",
        "1.2.3.4",
        "1.2.3.4.5",
        "1.2.3.4.9",
        "-1.0.0.0.0",
        "1.0.0.0.0 ",
        "\u0661.0.0.0.0",
        "9" * 19 + ".0.0.0.0",
        "0.0.9999999999.0.0",
        "x.0.0.0.0",
        "0.0.0.0.0.0",
    ],
)
def test_what_is_no_cursor_of_ours_is_none(text: str) -> None:
    assert Cursor.parse(text) is None


def test_a_cursor_comes_back_as_it_was_handed_out() -> None:
    for cursor in (Cursor(0), Cursor(3, 4, 5, 6), Cursor(7, 8, ended=True)):
        assert Cursor.parse(str(cursor)) == cursor


@contextmanager
def registered(panel: Panel) -> Iterator[None]:
    panels.register(panel)
    try:
        yield
    finally:
        del panels._panels[panel.key]


def test_another_apps_objects_are_read_in_the_same_statement_and_shown_in_frames() -> None:
    turn = TurnFactory(running=True, asked=True)
    sql: Any = "SELECT json_build_array(json_build_object('id', c.id::text, 'state', 'queued'))"
    owner_id = turn.conversation.owner_id
    with (
        registered(Panel("errands", "errand", sql)),
        registered(Panel("voice", "voice", "SELECT NULL::json", single=True)),
        CaptureQueriesContext(connection) as queries,
    ):
        snapshot = projection.snapshot(turn.conversation_id, owner_id)
        assert len(queries) == 1
        assert snapshot is not None
        _, content = frames.snapshot_content(snapshot)
        assert content["errands"] == [{"id": str(turn.conversation_id), "state": "queued"}]
        assert content["voice"] is None
        Conversation.objects.update(revision=1)
        (change,) = changes(watched(turn, Cursor(0, turn.pk)))
        assert change is not None
        shown = frames.change_frames(change, Cursor(0, turn.pk))
        assert shown is not None
        assert ['"type":"turn"' in shown[0][0], '"type":"errand"' in shown[0][1]] == [
            True,
            True,
        ]
        # only the last frame carries the moved revision
        assert [f'"cursor":"{n}.{turn.pk}.0.0.0"' in shown[0][n] for n in (0, 1)] == [True] * 2
        assert shown[1] == Cursor(1, turn.pk)


def shown_objects(*names: str, **panel: Any) -> Panel:
    """Return a panel that shows an object for each of `names`, in this order."""
    listed = ", ".join(f"json_build_object('id', '{name}')" for name in names)
    sql: Any = f"SELECT json_build_array({listed})"
    return Panel("errands", "errand", sql, **panel)


def change_since(turn: Turn, cursor: Cursor) -> tuple[list[dict[str, Any]], Cursor] | None:
    """Return the frames that continue a view at `cursor`, None when only a snapshot does."""
    Conversation.objects.update(revision=1)
    (change,) = changes(watched(turn, cursor))
    assert change is not None
    shown = frames.change_frames(change, cursor)
    return shown and ([json.loads(frame) for frame in shown[0]], shown[1])


def test_a_message_an_app_has_added_arrives_like_any_other_and_says_what_it_is_about() -> None:
    turn = TurnFactory(completed=True)
    added = MessageFactory(conversation=turn.conversation, answered=True, text="*Done*")
    since: Any = (
        "SELECT x.id FROM turns_message x WHERE x.conversation_id = c.id "
        "AND x.text = '*Done*' AND s.revision < 1"
    )
    about: Any = (
        "SELECT json_build_object('type', 'job', 'id', m.id::text, 'label', 'Job', "
        "'title', 'A goal', 'state', 'failed')"
    )
    panel = shown_objects("7", messages_sql=since, about_sql=about)
    with registered(panel):
        seen = change_since(turn, Cursor(0, turn.pk, ended=True))
        assert seen is not None
        message, job = seen[0]
        assert (message["type"], message["id"], job["type"]) == (
            "message",
            str(added.pk),
            "errand",
        )
        assert (message["html"], message["turn_id"]) == ("<p><em>Done</em></p>\n", None)
        assert message["about"] == {
            "type": "job", "id": str(added.pk), "label": "Job", "title": "A goal",
            "state": "failed",
        }  # fmt: skip
        # who loses the second frame is given both again
        assert (message["cursor"], job["cursor"]) == (f"0.{turn.pk}.0.0.1", str(seen[1]))
        Conversation.objects.update(revision=2)
        (later,) = changes(watched(turn, seen[1]))
        assert later is not None
        assert later.messages == ()
        snapshot = projection.snapshot(turn.conversation_id, turn.conversation.owner_id)
        assert snapshot is not None
        assert [m.about is not None for m in snapshot.messages] == [True, False, False]
        found = projection.message(added.pk, turn.conversation.owner_id)
        assert found is not None
        assert found.about is not None
        assert found.turn_id is None


def test_the_end_of_a_turn_is_shown_once_whatever_else_happens_afterwards() -> None:
    turn = TurnFactory(completed=True)
    seen = change_since(turn, Cursor(0, turn.pk, ended=True))
    assert seen is not None
    assert [frame["type"] for frame in seen[0]] == ["turn"]  # nothing else tells the revision
    with registered(shown_objects("1", "2")):
        seen = change_since(turn, Cursor(0, turn.pk, ended=True))
    assert seen is not None
    assert [frame["type"] for frame in seen[0]] == ["errand", "errand"]
    assert seen[1] == Cursor(1, turn.pk, ended=True)


def test_who_missed_too_many_objects_is_shown_a_snapshot() -> None:
    turn = TurnFactory(completed=True)
    with registered(shown_objects("1", "2", most=2)):
        assert change_since(turn, Cursor(0, turn.pk, ended=True)) is not None
    with registered(shown_objects("1", "2", "3", most=2)):
        assert change_since(turn, Cursor(0, turn.pk, ended=True)) is None


def test_objects_of_panels_leave_room_for_messages() -> None:
    """The last objects are there, and the last of them with the most they may say."""
    conversation = ConversationFactory()
    MessageFactory(conversation=conversation, text="w" * 8_000)

    def variants(one: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**one, "size": size, "text": "x" * size} for size in (20_000, 9_000, 400)]

    place = (conversation.pk, conversation.owner_id)
    names = [str(number) for number in range(100)]
    with registered(shown_objects(*names[:3], variants=variants, heavy=1)):
        snapshot = projection.snapshot(*place)
        assert snapshot is not None
        _, content = frames.snapshot_content(snapshot)
    sizes = {one["id"]: one["size"] for one in content["errands"]}
    assert sizes == {"0": 400, "1": 400, "2": 9_000}
    assert len(content["messages"]) == 1
    with registered(shown_objects(*names, variants=variants, heavy=1)):
        snapshot = projection.snapshot(*place)
        assert snapshot is not None
        (frame,), _ = frames.snapshot_frames(snapshot)
    shown = json.loads(frame)
    assert [one["id"] for one in shown["errands"]] == names[-len(shown["errands"]) :]
    assert len(shown["errands"]) > 30
    assert len(json.dumps(shown["errands"])) <= frames.PANELS_MAX_BYTES * 1.1
    assert len(frame.encode()) <= frames.MAX_BYTES


def test_a_panel_is_registered_once() -> None:
    with (
        registered(Panel("errands", "errand", "SELECT NULL::json")),
        pytest.raises(ValueError, match="errands"),
    ):
        panels.register(Panel("errands", "errand", "SELECT NULL::json"))


def test_every_message_row_a_snapshot_reads_is_found_by_an_index() -> None:
    conversation = ConversationFactory()
    for _ in range(3):
        TurnFactory(conversation=conversation, completed=True)
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        parameters = projection.snapshots_parameters([(conversation.pk, conversation.owner_id)])
        cursor.execute(f"EXPLAIN {projection.snapshots_statement()}", parameters)
        plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert "Seq Scan" not in plan, plan
    assert Message.objects.count() == 6
