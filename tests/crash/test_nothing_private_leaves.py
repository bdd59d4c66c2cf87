"""Provider-specific errors and private content do not cross the adapter or log boundary.

A whole worker at its most talkative, a provider that quotes everything back, and then every
place where words could have ended up.
"""

from __future__ import annotations

import json
from io import StringIO
from typing import Final

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from tests.factories import ConversationFactory, UserFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, close, json_reply, send
from tests.simulators.responses_wire import (
    Stream,
    answer,
    event,
    frames_reply,
    tool_calls,
)
from tests.support.turns import ask, wait_until_ended
from tests.support.unsaid import require_unsaid, rows_beside_what_was_said
from tests.support.worker import Worker, WorkerStarter
from turns.models import ToolStep, Turn

pytestmark = pytest.mark.django_db(transaction=True)

KEY: Final = "sk-canary-1234567890"
PROMPT: Final = "Please keep my divorce from Amalberga entirely between the two of us."
SAID: Final = (
    f"Incorrect API key {KEY} at https://canary.example/v1?key={KEY} for the prompt: {PROMPT}"
)

FAILURES: Final[dict[str, tuple[Reply, str]]] = {
    "rejected": (json_reply({"error": {"message": SAID}}, status=400), "provider_rejected"),
    "unauthorised": (json_reply({"error": {"message": SAID}}, status=401), "provider_auth"),
    "broken": (json_reply([SAID], status=500), "provider_unavailable"),
    "after 200": (
        frames_reply(event("error", code="server_error", message=SAID, param=None)),
        "provider_unavailable",
    ),
    "malformed": (
        frames_reply(event("response.output_text.delta", delta=[SAID])),
        "provider_protocol",
    ),
    "not json": (frames_reply(f"data: {SAID}\n\n".encode()), "provider_protocol"),
    "cut": (Reply([send(*Stream().opening()), close()]), "truncated_stream"),
}


def admin_pages(turn: Turn) -> str:
    client = Client()
    client.force_login(UserFactory.create(is_staff=True, is_superuser=True))
    pages = [
        reverse("admin:turns_turn_changelist"),
        reverse("admin:turns_turn_change", args=[turn.pk]),
        reverse("admin:turns_message_changelist"),
        reverse("admin:turns_message_change", args=[turn.user_message_id]),
        reverse("admin:recovery_recoveryevent_changelist"),
    ]
    return "\n".join(client.get(page).content.decode() for page in pages)


def commands() -> str:
    out = StringIO()
    call_command("recover_turns", "--json", stdout=out, stderr=out)
    call_command("recover_turns", stdout=out, stderr=out)
    return out.getvalue()


def start_talkative(start_worker: WorkerStarter) -> Worker:
    return start_worker(LOG_LEVEL="DEBUG", LLM_API_KEY=KEY)


def test_a_provider_that_quotes_everything_is_heard_by_nobody(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    """failures H42, H43, H44; behaviours E4, F5"""
    worker = start_talkative(start_worker)
    for reply, code in FAILURES.values():
        model.script(reply)
        turn = ask(ConversationFactory.create(), PROMPT)
        worker.hint(turn.pk)
        wait_until_ended(turn)
        assert (turn.state, turn.error_code) == ("failed", code)
        require_unsaid("the rows", rows_beside_what_was_said(), SAID, KEY, PROMPT)
        require_unsaid("the admin", admin_pages(turn), SAID, KEY, PROMPT)
    require_unsaid("the commands", commands(), SAID, KEY, PROMPT)
    worker.terminate()
    require_unsaid("the log", worker.said(), SAID, KEY, PROMPT)
    # what an operator needs is there
    assert '"turn.ended"' in worker.said()
    assert "provider_rejected" in worker.said()
    assert "scripted" in Turn.objects.values_list("model", flat=True)


def test_what_a_tool_is_asked_and_answers_stands_in_its_step_alone(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    """behaviour C2, failure H44"""
    worker = start_talkative(start_worker)
    model.script(
        tool_calls(
            ("call_1", "search_history", json.dumps({"query": PROMPT})),
            ("call_2", "search_history", json.dumps({"query": 7, "because": PROMPT})),
            ("call_3", "note_save", json.dumps({"text": PROMPT})),
            ("call_4", "unheard_of", json.dumps({"text": PROMPT})),
        ),
        answer("Done.", response_id="resp_2"),
    )
    turn = ask(ConversationFactory.create(), "Look for it.")
    worker.hint(turn.pk)
    assert wait_until_ended(turn).state == "completed"
    searched, refused, saved, unknown = ToolStep.objects.filter(turn=turn).order_by("sequence")
    assert PROMPT in searched.arguments
    assert refused.error_code == "invalid_tool_arguments"
    require_unsaid("the reason of a refusal", refused.result, PROMPT)
    assert (saved.state, unknown.state) == ("succeeded", "unavailable")
    require_unsaid("the admin", admin_pages(turn), PROMPT)
    require_unsaid("the commands", commands(), PROMPT)
    worker.terminate()
    require_unsaid("the log", worker.said(), PROMPT)
