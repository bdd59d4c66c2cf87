"""A worker whose event loop stands still must not look alive; waking up it writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import bounds
from recovery.models import RecoveryEvent
from tests.factories import ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled, tool_calls
from tests.support.blocking_tools import RELEASE
from tests.support.turns import ask, everything, require_terminal, text_of, wait_until_ended
from tests.support.waiting import wait_until
from tests.support.worker import WorkerStarter
from turns.models import ToolStep
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = 5


def test_a_hung_loop_is_not_renewed_and_its_turns_are_interrupted(
    start_worker: WorkerStarter, model: Simulator, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    model.script(
        stalled("Once upon", match="story"),
        tool_calls(("call_1", "block_loop", "{}"), match="hang"),
    )
    worker = start_worker(
        DJANGO_SETTINGS_MODULE="tests.support.worker_settings",
        **{RELEASE: str(release)},
        HOLDFAST_LEASE_SECONDS=str(LEASE_SECONDS),
        # its own sweep shall not be what ends its turns
        HOLDFAST_SWEEP_SECONDS="3600",
    )
    runtime = worker.runtime
    story = ask(ConversationFactory.create(), "story")
    worker.hint(story.pk)
    wait_until(lambda: text_of(story) == "Once upon", "the text is committed")
    hanging = ask(ConversationFactory.create(), "hang")
    worker.hint(hanging.pk)
    wait_until(
        lambda: ToolStep.objects.filter(turn=hanging, state="running").exists(), "it hangs"
    )

    wait_until(lambda: TurnRecovery().run().interrupted, "the orphans are interrupted")
    for turn in (story, hanging):
        require_terminal(turn)
        assert (turn.state, turn.error_code) == ("interrupted", "lease_expired")
    assert text_of(story) == "Once upon"
    assert RecoveryEvent.objects.count() == 2
    runtime.refresh_from_db()
    assert runtime.stopped_at is not None
    # a loop that is merely late is not taken for dead
    silence = runtime.stopped_at - runtime.renewed_at
    assert silence.total_seconds() >= LEASE_SECONDS
    lived = runtime.stopped_at - runtime.started_at
    assert lived.total_seconds() >= bounds.LOOP_TICK_MAX_AGE_SECONDS
    before = everything()

    release.touch()
    wait_until(lambda: worker.runtime.pk != runtime.pk, "it registers anew")
    model.release("answer")
    wait_until(lambda: worker.said().count('"turn.fence_lost"') == 2, "both are let go")
    assert everything() == before

    model.script(answer("Here."))
    again = ask(story.conversation, "Again?")
    worker.hint(again.pk)
    assert wait_until_ended(again).state == "completed"
