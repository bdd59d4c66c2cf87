"""An answer that can be had again: what was found, signed, for one conversation of one person.

A reference holds ids, places and fingerprints, and no text of any message. Loading it reads the
messages anew under the same scope: the same ones in the same order, whatever has been said or
derived since; one that was removed is missing, and so is one whose words were changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from django.core import signing

from recovery.errors import ErrorCode, Refused
from semantic import bounds, ranking
from semantic.candidates import Scope
from semantic.excerpts import excerpt
from semantic.ranking import Found
from semantic.search import Hit, Mode, Results

SALT: Final = "semantic.snapshot"
DIGEST_CHARS: Final = 12
# Scores and similarities travel as whole numbers.
PRECISION: Final = 1_000_000


class Kept(NamedTuple):
    """A message that was found: which, the beginning of its digest, and why."""

    message_id: int
    digest: str
    score: int
    has_words: bool
    similarity: int | None
    has_some_words: bool = False

    @classmethod
    def of(cls, found: Found) -> Self:
        """Return what is kept of it."""
        near = found.similarity
        return cls(
            found.message_id,
            found.digest[:DIGEST_CHARS],
            round(found.score * PRECISION),
            found.has_words,
            None if near is None else round(near * PRECISION),
            found.has_some_words,
        )

    def of_it(self, message: Found) -> Found:
        """Return the message, read anew, as it was found then."""
        return message._replace(
            score=self.score / PRECISION,
            has_words=self.has_words,
            similarity=None if self.similarity is None else self.similarity / PRECISION,
            has_some_words=self.has_some_words,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was asked, in which conversation, within which scope, and what came of it."""

    asked_in: int
    scope: Scope
    query: str
    mode: Mode
    truncated: bool
    kept: tuple[Kept, ...]
    # by which it was loaded: signed anew it would be another one in the next second
    given_ref: str = ""

    @classmethod
    def of(cls, results: Results, query: str, scope: Scope, *, asked_in: int) -> Self:
        """Return the snapshot of an answer."""
        return cls(
            asked_in,
            scope,
            query,
            results.mode,
            results.truncated,
            tuple(Kept.of(hit.found) for hit in results.hits),
        )

    @property
    def ref(self) -> str:
        """What names it, for whoever asks in the same conversation."""
        if self.given_ref:
            return self.given_ref
        told = {
            "p": self.scope.person_id,
            "a": self.asked_in,
            "c": self.scope.conversation_id,
            "b": self.scope.before_message_id,
            "q": self.query,
            "m": self.mode.value,
            "t": self.truncated,
            "h": self.kept,
        }
        return signing.dumps(told, salt=SALT, compress=True)

    @classmethod
    def load(cls, ref: str, *, person_id: int, asked_in: int) -> Self:
        """Return the snapshot that `ref` names.

        Raises:
            Refused: `not_found`, it is none of ours; `scope_refused`, it is that of another
                person or of another conversation.
        """
        try:
            if len(ref) > bounds.REF_MAX_CHARS:
                raise signing.BadSignature
            told: dict[str, Any] = signing.loads(ref, salt=SALT)
        except signing.BadSignature:
            raise Refused(ErrorCode.NOT_FOUND) from None
        if (told["p"], told["a"]) != (person_id, asked_in):
            raise Refused(ErrorCode.SCOPE_REFUSED)
        return cls(
            asked_in,
            Scope(person_id, told["c"], told["b"]),
            told["q"],
            Mode(told["m"]),
            told["t"],
            tuple(Kept(*one) for one in told["h"]),
            ref,
        )

    def results(self) -> Results:
        """Return the answer, read anew."""
        ids = [one.message_id for one in self.kept]
        here = {one.message_id: one for one in ranking.read(ids, self.scope)}
        again = [
            one.of_it(here[one.message_id])
            for one in self.kept
            if one.message_id in here and here[one.message_id].digest.startswith(one.digest)
        ]
        hits = tuple(Hit(found, excerpt(found.text, self.query)) for found in again)
        return Results(self.mode, hits, self.truncated)
