"""What conversations, turns and messages look like from outside: API answers and live frames.

Ids are strings: JavaScript's numbers are too short for them. The objects of a live frame say a
little more than those of the API, because the page shows more than a program asks for.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    computed_field,
)

from recovery.errors import ErrorCode


def _spelled(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


# One spelling in API answers and live frames, to the microsecond PostgreSQL keeps.
Moment = Annotated[
    datetime.datetime,
    PlainSerializer(_spelled, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]

# Text that reached its bound, or that its provider cut: shown as cut rather than as failed.
CUT_CODES = frozenset(
    {ErrorCode.RESPONSE_INCOMPLETE, ErrorCode.ASSISTANT_MESSAGE_LIMIT_REACHED}
)


class Shape(BaseModel):
    """An object that is read from the database and never changed."""

    model_config = ConfigDict(frozen=True)


ShapeT = TypeVar("ShapeT", bound=Shape)


def narrowed(view: Shape, shape: type[ShapeT]) -> ShapeT:
    """Return as much of `view` as `shape` has: what the API answers with, and no more."""
    return shape.model_validate(view.model_dump(include=set(shape.model_fields)))


class Problem(Shape):
    """Every refusal of the API, whatever its status."""

    code: str = Field(description="One word, stable: what programs compare.")
    message: str = Field(description="One public sentence, for people.")


class ConversationShape(Shape):
    """A conversation as its owner sees it in a list."""

    id: str
    title: str
    created_at: Moment


class ListedConversation(ConversationShape):
    """A conversation in the list, with what a list shows beside its name."""

    excerpt: str = Field(description="The beginning of the first question, for an empty title.")
    active: bool = Field(description="Whether an answer is being written, or a job at work.")


class MessageShape(Shape):
    """One message. A `streaming` one holds what is committed so far."""

    id: str
    role: Literal["user", "assistant"]
    state: Literal["streaming", "complete", "failed", "cancelled", "interrupted"]
    text: str | None
    created_at: Moment
    turn_id: str | None


class Step(Shape):
    """One request to a model provider, or one tool call."""

    id: str
    kind: Literal["provider", "tool"]
    name: str
    state: str
    error_code: str | None


class About(Shape):
    """What an assistant's message without a turn belongs to: a job it reports on."""

    type: str
    id: str
    label: str = Field(description="What kind of thing it is, in words.")
    title: str
    state: str


class MessageView(MessageShape):
    """A message with all the page shows of it."""

    edited_at: Moment | None = None
    error_code: str | None = None
    about: About | None = None
    seq: int = Field(default=0, exclude=True)
    steps: tuple[Step, ...] = Field(default=(), description="The tool calls of the answer.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error_message(self) -> str | None:
        """The public sentence of the error code."""
        return sentence(self.error_code)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def html(self) -> str | None:
        """A finished answer's Markdown, rendered and made safe."""
        if self.role == "user" or self.state == "streaming" or not self.text:
            return None
        from turns import markdown  # noqa: PLC0415 - the parser loads where a page is shown

        return markdown.render(self.text)


class Answer(Shape):
    """The assistant's side of a turn."""

    id: str
    state: str
    text: str | None = Field(description="All of it, or as much as is committed so far.")


class TurnShape(Shape):
    """A question and how far its answer is."""

    id: str
    conversation_id: str
    state: Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"]
    error_code: str | None
    generation: int
    created_at: Moment
    finished_at: Moment | None
    usage: dict[str, Any] | None
    user: MessageShape
    assistant: Answer
    steps: tuple[Step, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error_message(self) -> str | None:
        """The public sentence of the error code."""
        return sentence(self.error_code)


class TurnView(TurnShape):
    """A turn with all the page shows of it."""

    cancel_requested: bool
    seq: int = Field(default=0, exclude=True)
    messages: tuple[MessageView, ...] = Field(default=(), exclude=True)

    @property
    def is_open(self) -> bool:
        """Whether something may still follow."""
        return self.state in {"queued", "running"}


def sentence(error_code: str | None) -> str | None:
    """Return the public sentence of a code, None for none."""
    return str(ErrorCode(error_code).label) if error_code else None
