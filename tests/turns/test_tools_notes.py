"""The notes of a person: kept once for each call, listed, forgotten, nobody else's."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from recovery.errors import StaleFence
from recovery.executor import in_thread
from tests.factories import NoteFactory, ToolStepFactory, UserFactory
from turns import bounds, transitions
from turns.models import Note, ToolStep
from turns.tools import registry
from turns.tools.registry import Invocation
from turns.tools.runner import Outcome, invoke

pytestmark = pytest.mark.django_db(transaction=True)


async def running_call() -> ToolStep:
    """Return the step of a call that runs."""
    step: ToolStep = await in_thread(lambda: ToolStepFactory.create(running=True))
    return step


async def owner_of(step: ToolStep) -> int:
    owner_id: int = await in_thread(lambda: step.turn.conversation.owner_id)
    return owner_id


async def call(
    name: str, step: ToolStep, *, key: UUID | None = None, **arguments: str
) -> Outcome:
    tool = registry.get(name)
    assert tool is not None
    invocation: Invocation[Any] = Invocation(
        await owner_of(step),
        1,
        1,
        key or step.invocation_key,
        tool.parse(json.dumps(arguments)),
    )
    return await invoke(tool, invocation)


async def notes() -> list[str]:
    return await in_thread(
        lambda: list(Note.objects.order_by("pk").values_list("text", flat=True))
    )


async def test_a_note_is_stored_listed_and_forgotten() -> None:
    """behaviour C11"""
    stored = await call("note_save", await running_call(), text="Prefers tea. 🍵")
    assert stored.state == "succeeded"
    assert json.loads(stored.result)["disposition"] == "stored"

    step = await running_call()
    await in_thread(lambda: Note.objects.all().delete())
    kept = json.loads((await call("note_save", step, text="Prefers tea. 🍵")).result)
    listed = json.loads((await call("note_list", step)).result)
    assert [(n["note_id"], n["text"]) for n in listed["notes"]] == [
        (kept["note_id"], "Prefers tea. 🍵")
    ]
    forgotten = await call("note_remove", step, note_id=kept["note_id"])
    assert json.loads(forgotten.result) == {"disposition": "forgotten"}
    assert await notes() == []


async def test_one_call_stores_one_note_however_often_it_is_delivered() -> None:
    step = await running_call()
    first = await call("note_save", step, text="Once.")
    again = await call("note_save", step, text="Once.")
    assert first.result == again.result
    assert await notes() == ["Once."]


@pytest.mark.parametrize("end", ["cancelled", "interrupted", "succeeded"])
async def test_a_call_whose_step_has_ended_has_no_effect(end: str) -> None:
    step: ToolStep = await in_thread(lambda: ToolStepFactory.create(**{end: True}))
    outcome = await call("note_save", step, text="Too late.")
    assert (outcome.state, outcome.error_code) == ("cancelled", "cancelled")
    note = await in_thread(lambda: NoteFactory.create(owner_id=step.turn.conversation.owner_id))
    gone = await call("note_remove", step, note_id=str(note.pk))
    assert gone.state == "cancelled"
    assert await notes() == [note.text]


async def test_a_call_that_was_never_stored_has_no_effect() -> None:
    step = await running_call()
    outcome = await call("note_save", step, key=uuid4(), text="From nowhere.")
    assert outcome.state == "cancelled"
    assert await notes() == []


@pytest.mark.parametrize("text", [" \n", "é" * 1_001])
async def test_what_is_no_note_is_refused_before_anything_is_stored(text: str) -> None:
    outcome = await call("note_save", await running_call(), text=text)
    assert (outcome.state, outcome.error_code) == ("failed", "invalid_tool_arguments")
    assert await notes() == []


async def test_a_person_has_at_most_200_notes_and_a_removed_one_makes_room() -> None:
    step = await running_call()
    owner_id = await owner_of(step)
    await in_thread(lambda: NoteFactory.create_batch(bounds.NOTES_PER_OWNER, owner_id=owner_id))
    full = await call("note_save", step, text="One more.")
    assert full.state == "refused"
    assert str(bounds.NOTES_PER_OWNER) in full.result
    oldest = await in_thread(lambda: Note.objects.earliest("pk"))
    await call("note_remove", step, note_id=str(oldest.pk))
    assert (await call("note_save", step, text="One more.")).state == "succeeded"


async def test_a_list_is_bounded_and_says_so() -> None:
    step = await running_call()
    owner_id = await owner_of(step)
    await in_thread(lambda: NoteFactory.create_batch(51, owner_id=owner_id, text="é" * 1_000))
    outcome = await call("note_list", step)
    listed = json.loads(outcome.result)
    assert (len(listed["notes"]), listed["truncated"]) == (50, True)
    assert len(outcome.result.encode()) <= bounds.TOOL_RESULT_MAX_BYTES


async def test_notes_of_somebody_else_are_neither_listed_nor_found() -> None:
    foreign = await in_thread(NoteFactory.create)
    step = await running_call()
    assert json.loads((await call("note_list", step)).result)["notes"] == []
    answers = [
        await call("note_remove", step, note_id=note_id)
        for note_id in (str(foreign.pk), str(foreign.pk + 1_000), "0", "x")
    ]
    assert {(a.state, a.error_code, a.result) for a in answers} == {
        ("failed", "not_found", "There is nothing here.")
    }
    assert await notes() == [foreign.text]


def test_another_persons_call_does_not_return_this_persons_note() -> None:
    step = ToolStepFactory.create(running=True)
    owner_id = step.turn.conversation.owner_id
    note = transitions.save_note(owner_id, "Mine.", key=step.invocation_key)
    ToolStep.objects.filter(pk=step.pk).update(state="cancelled", finished_at=note.created_at)
    with pytest.raises(StaleFence):
        transitions.save_note(UserFactory.create().pk, "Mine.", key=step.invocation_key)
