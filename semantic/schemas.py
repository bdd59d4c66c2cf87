"""What a search looks like from outside."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turns.schemas import Shape


class HitShape(Shape):
    """A message that was found."""

    message_id: str
    conversation_id: str
    score: float = Field(description="Only to compare hits of one answer; best first.")
    excerpt: str = Field(description="At most 800 bytes of UTF-8, around the words.")


class SearchShape(Shape):
    """What a search found."""

    mode: Literal["hybrid", "text"] = Field(
        description="`text` where only words could be compared, not their meaning."
    )
    hits: list[HitShape]
