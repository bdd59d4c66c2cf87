"""A live TurnServer in a real worker is killed at each step of the protocol.

Contract, "Text turns": recovery makes every durable row terminal in one transaction and
invents no completion, usage or output; running it again is a no-op; nothing external happens
again until the person sends again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from recovery.models import RecoveryEvent
from tests.factories import ConversationFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled, tool_calls
from tests.support.turns import ask, everything, require_terminal, text_of, wait_until_ended
from tests.support.worker import WorkerStarter
from turns.models import Conversation, Message, ProviderStep, Receipt, ToolStep, Turn
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass(frozen=True)
class Death:
    """Where the worker dies, and what must be found afterwards."""

    probe: str
    posts: int
    text: str = ""
    webhooks: int = 0
    receipt: str | None = "interrupted"
    provider_steps: list[str] = field(default_factory=lambda: ["interrupted"])
    tool_step: tuple[str, str] | None = None
    reported_usage: bool = False

    @property
    def uses_a_tool(self) -> bool:
        return self.tool_step is not None


LOOKING = "Let me look. "
DEATHS = [
    Death("turn.claimed", posts=0, receipt=None, provider_steps=[]),
    Death("turn.request_started", posts=0),
    Death("turn.provider_called", posts=1),
    Death("turn.text_committed", posts=1, text="Once upon"),
    Death(
        "turn.provider_step_completed",
        posts=1,
        text=LOOKING,
        provider_steps=["completed"],
        tool_step=("interrupted", "not_started"),
        reported_usage=True,
    ),
    Death(
        "turn.step_requested",
        posts=1,
        text=LOOKING,
        provider_steps=["completed"],
        tool_step=("interrupted", "not_started"),
        reported_usage=True,
    ),
    Death(
        "turn.step_running",
        posts=1,
        text=LOOKING,
        provider_steps=["completed"],
        tool_step=("interrupted", "outcome_unknown"),
        reported_usage=True,
    ),
    Death(
        "turn.outcome_committed",
        posts=1,
        text=LOOKING,
        webhooks=1,
        provider_steps=["completed"],
        tool_step=("succeeded", ""),
        reported_usage=True,
    ),
    Death(
        "turn.continuing",
        posts=1,
        text=LOOKING,
        webhooks=1,
        provider_steps=["completed", "interrupted"],
        tool_step=("succeeded", ""),
        reported_usage=True,
    ),
    Death("turn.finishing", posts=1, text="Once upon a time."),
]


@pytest.fixture
def conversation(sink: Simulator) -> Conversation:
    """A person's conversation, who allows the sink as a webhook."""
    conversation = ConversationFactory.create()
    WebhookAddressFactory.create(owner=conversation.owner, url=f"{sink.url}/hook")
    return conversation


def script(model: Simulator, sink: Simulator, death: Death) -> None:
    """Let the model answer as the death needs it."""
    if death.uses_a_tool:
        arguments = json.dumps({"url": f"{sink.url}/hook", "body": '{"n": 1}'})
        model.script(tool_calls(("call_1", "webhook_post", arguments), text=LOOKING))
    elif death.probe == "turn.finishing":
        model.script(answer("Once upon", " a time."))
    elif death.posts:
        model.script(stalled("Once upon"))


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.probe)
def test_a_killed_turn_ends_interrupted_and_nothing_is_invented_or_repeated(
    death: Death,
    conversation: Conversation,
    start_worker: WorkerStarter,
    model: Simulator,
    sink: Simulator,
) -> None:
    script(model, sink, death)
    worker = start_worker(stop_at=[death.probe])
    turn = ask(conversation)
    worker.hint(turn.pk)
    worker.wait_until_reached(death.probe)
    committed = text_of(turn)
    worker.kill()

    report = TurnRecovery().run()
    assert (report.examined, report.interrupted) == (1, 1)
    require_terminal(turn)
    assert (turn.state, turn.error_code) == ("interrupted", "runtime_lost")
    assert_found(turn, death, committed)
    assert RecoveryEvent.objects.filter(row_id=turn.pk, cause="runtime_lost").count() == 1

    before = everything()
    again = TurnRecovery().run()
    assert (again.examined, again.changed_count) == (0, 0)
    assert everything() == before

    # The hint comes three times more, to a worker that lives: nothing happens outside. Then the
    # person sends again, and gets an answer.
    assert (model.posts, sink.posts) == (death.posts, death.webhooks)
    model.script(answer("Here it is."))
    living = start_worker()
    living.hint(turn.pk, times=3)
    second = ask(conversation, "Again, please.")
    living.hint(second.pk)
    wait_until_ended(second)
    assert (second.state, text_of(second)) == ("completed", "Here it is.")
    assert (model.posts, sink.posts) == (death.posts + 1, death.webhooks)
    changed_since = Turn.objects.filter(pk=turn.pk, write_mark__gt=turn.write_mark)
    assert not changed_since.exists()


def assert_found(turn: Turn, death: Death, committed: str) -> None:
    """Compare the rows with what the death must leave."""
    message = Message.objects.get(pk=turn.assistant_message_id)
    assert (message.state, message.text) == ("interrupted", committed)
    assert committed == death.text
    receipt = Receipt.objects.filter(turn=turn).first()
    assert (receipt.state if receipt else None) == death.receipt
    steps = list(ProviderStep.objects.filter(turn=turn).order_by("sequence"))
    assert [step.state for step in steps] == death.provider_steps
    for step in steps:
        # usage is what a committed completion reported, and nothing else
        assert (step.usage is not None) == (step.state == "completed")
    if receipt is not None:
        assert (receipt.usage is not None) == death.reported_usage
    tools = list(ToolStep.objects.filter(turn=turn).values_list("state", "error_code"))
    assert tools == ([death.tool_step] if death.tool_step else [])


def test_a_turn_nobody_had_claimed_is_run_once_by_the_next_worker(
    conversation: Conversation, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(answer("Here it is."))
    worker = start_worker(stop_at=["turn.admitted"])
    turn = ask(conversation)
    worker.hint(turn.pk)
    worker.wait_until_reached("turn.admitted")
    worker.kill()

    report = TurnRecovery().run()
    assert report.interrupted == 0
    turn.refresh_from_db()
    assert (turn.state, turn.generation, model.posts) == ("queued", 0, 0)

    start_worker().hint(turn.pk, times=3)
    wait_until_ended(turn)
    assert (turn.state, turn.generation, model.posts) == ("completed", 1, 1)
