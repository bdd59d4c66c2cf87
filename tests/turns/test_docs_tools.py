"""The example of docs/tools.md is run as it is printed there."""

from __future__ import annotations

import importlib
import json
import re
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import AppConfig

import turns
from recovery.executor import in_thread
from tests.factories import ToolStepFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.scripted import *  # noqa: F403
from tests.support.serving import serving, tool_steps
from turns.models import Note, ToolStep
from turns.tools.registry import Invocation, Registry
from turns.tools.runner import invoke

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(turns.__file__).parents[1] / "docs" / "tools.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the code of the page defines, as a module of its own."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "calendar_tools.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "calendar_tools", raising=False)
    return vars(importlib.import_module("calendar_tools"))


async def test_the_reading_tool_answers_in_a_whole_turn(
    example: dict[str, Any], model: Simulator
) -> None:
    christmas = date.today() + timedelta(days=26)  # noqa: DTZ011 - as the example does
    model.script(
        tool_calls(
            ("call_1", "days_until", json.dumps({"day": christmas.isoformat()})),
            ("call_2", "days_until", '{"day": "soon"}'),
            ("call_3", "days_until", "{}"),
        ),
        answer("26 days.", response_id="resp_2"),
    )
    async with serving(model.base_url, example["DAYS_UNTIL"]) as runtime:
        turn = await runtime.serve(await runtime.ask("How long until then?"))
    assert turn.state == "completed"
    counted, unclear, empty = await tool_steps(turn)
    assert json.loads(counted.result) == {"days": 26}
    assert (unclear.state, unclear.result) == ("failed", "`day` is not a date.")
    assert empty.error_code == "invalid_tool_arguments"


async def test_the_writing_tool_has_one_effect_while_its_call_runs_and_none_after(
    example: dict[str, Any],
) -> None:
    step: ToolStep = await in_thread(lambda: ToolStepFactory.create(running=True))
    owner_id = await in_thread(lambda: step.turn.conversation.owner_id)

    async def call() -> Any:
        arguments = example["PIN"].parse('{"text": "Milk."}')
        invocation: Invocation[Any] = Invocation(owner_id, 1, 1, step.invocation_key, arguments)
        return await invoke(example["PIN"], invocation)

    first, again = await call(), await call()
    assert [json.loads(r.result)["created"] for r in (first, again)] == [True, False]
    assert await in_thread(Note.objects.count) == 1

    step = await in_thread(lambda: ToolStepFactory.create(cancelled=True))
    assert (await call()).state == "cancelled"
    assert await in_thread(Note.objects.count) == 1


def test_the_app_registers_it(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    own = Registry()
    monkeypatch.setattr("turns.tools.registry", own)
    config: type[AppConfig] = example["CalendarConfig"]
    config.ready(config.__new__(config))
    assert own.get("days_until") is example["DAYS_UNTIL"]
