"""Conversations, turns and their children."""

from __future__ import annotations

import uuid
from typing import Any, Generic

import factory

from tests.factories.recovery import ClaimableFactory, UserFactory
from tests.factories.rows import M, Now_, RowFactory, Trait, after, ending
from tests.factories.steps import AskingFactory, CallingFactory, RequestedFactory
from turns import bounds
from turns.digests import digest
from turns.limits import Limits
from turns.models import (
    ApiToken,
    Conversation,
    Message,
    Note,
    ProviderStep,
    Receipt,
    TextChunk,
    ToolStep,
    Turn,
    WebhookAddress,
)
from turns.transitions import RequestFacts


class ConversationFactory(RowFactory[Conversation]):
    class Meta:
        model = Conversation

    owner = factory.SubFactory(UserFactory)


class MessageFactory(RowFactory[Message]):
    """What a person said; `assistant=True` streams an answer, `answered=True` is one."""

    class Meta:
        model = Message

    class Params:
        assistant = Trait(
            role="assistant", state="streaming", text="", digest="", finished_at=None
        )
        answered = Trait(role="assistant", text="An answer.")

    conversation = factory.SubFactory(ConversationFactory)
    role = "user"
    state = "complete"
    text = "A question."
    digest = factory.LazyAttribute(lambda message: digest(message.text))
    finished_at = Now_


def _ask(turn: Turn, _create: bool, wanted: bool | None, **_: Any) -> None:
    if wanted:
        ReceiptFactory.create(turn=turn)
        ProviderStepFactory.create(turn=turn)


class TurnFactory(ClaimableFactory[Turn]):
    """A queued turn of its own person and conversation."""

    class Meta:
        model = Turn
        skip_postgeneration_save = True

    class Params:
        completed = Trait(state="completed", finished_at=Now_)
        failed = ending("failed", "provider_unavailable")
        cancelled = ending("cancelled", "cancelled")
        interrupted = ending("interrupted", "runtime_lost")

    conversation = factory.SubFactory(ConversationFactory)
    user_message = factory.SubFactory(
        MessageFactory, conversation=factory.SelfAttribute("..conversation")
    )
    assistant_message = factory.SubFactory(
        MessageFactory, assistant=True, conversation=factory.SelfAttribute("..conversation")
    )
    request_digest = factory.LazyAttribute(lambda turn: turn.user_message.digest)
    model = "scripted"
    limits = factory.LazyFunction(lambda: Limits().snapshot())
    queue_deadline_at = after(seconds=bounds.QUEUE_DEADLINE_SECONDS)
    next_dispatch_at = after(seconds=5)

    # a running turn's receipt and its first provider step
    asked = factory.PostGeneration(_ask)


class ChildFactory(RowFactory[M], Generic[M]):
    """A child carries its turn's generation."""

    class Meta:
        abstract = True

    turn = factory.SubFactory(TurnFactory, running=True)
    generation = factory.SelfAttribute("turn.generation")


class ReceiptFactory(ChildFactory[Receipt], RequestedFactory[Receipt]):
    class Meta:
        model = Receipt

    provider_api = "responses"
    instructions_digest = digest("")
    input_digest = digest("")
    tools_digest = digest("")
    message_count = 1
    byte_count = 1


class ProviderStepFactory(ChildFactory[ProviderStep], AskingFactory[ProviderStep]):
    class Meta:
        model = ProviderStep

    sequence = 1


class ToolStepFactory(ChildFactory[ToolStep], CallingFactory[ToolStep]):
    class Meta:
        model = ToolStep

    class Params:
        refused = ending("refused", "address_not_allowed")
        external = Trait(effect="external", name="webhook_post")

    provider_step = factory.SubFactory(
        ProviderStepFactory, completed=True, turn=factory.SelfAttribute("..turn")
    )
    sequence = factory.LazyAttribute(lambda step: step.turn.tool_steps.count() + 1)


class TextChunkFactory(ChildFactory[TextChunk]):
    class Meta:
        model = TextChunk

    seq = factory.LazyAttribute(lambda chunk: chunk.turn.chunks.count() + 1)
    text = "Some text. "


class ApiTokenFactory(RowFactory[ApiToken]):
    class Meta:
        model = ApiToken

    class Params:
        revoked = Trait(revoked_at=Now_)

    user = factory.SubFactory(UserFactory)
    digest = factory.LazyFunction(lambda: digest(uuid.uuid4().hex))


class WebhookAddressFactory(RowFactory[WebhookAddress]):
    class Meta:
        model = WebhookAddress

    owner = factory.SubFactory(UserFactory)
    url = factory.Sequence(lambda n: f"https://example.test/hook/{n}")


class NoteFactory(RowFactory[Note]):
    class Meta:
        model = Note

    owner = factory.SubFactory(UserFactory)
    text = factory.Sequence("Remember {}.".format)
    invocation_key = factory.LazyFunction(uuid.uuid4)


def request_facts(**changes: Any) -> RequestFacts:
    """Return what a request's receipt would record."""
    facts = {
        "provider_api": "responses",
        "model": "scripted",
        "instructions_digest": digest("instructions"),
        "input_digest": digest("input"),
        "tools_digest": digest("tools"),
        "request_digest": digest("request"),
        "message_count": 1,
        "byte_count": 12,
        "offers_tools": True,
    }
    return RequestFacts(**{**facts, **changes})
