"""What a message that was found is worth as evidence. The host alone says so.

    irrelevant   it has neither the words nor the meaning of what was looked for
    weak         it is near in meaning only, and not very near; or it has some of the words only
    stale        it was said more than a year ago
    conflicting  another of the messages says the same of something else
    applicable   none of these

The first that fits counts. Nothing a model or a provider claims about a message is looked at:
only the two texts, the ranks, the times, and the other messages.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import combinations
from typing import Final

from semantic import bounds
from semantic.excerpts import words_of
from semantic.ranking import Found

# Sentences of each message that are compared with those of the others, and how much of it.
SENTENCES_MAX: Final = 20
COMPARED_CHARS: Final = 20_000
# Two sentences speak of the same when so much of their words is common.
COMMON_MIN: Final = 0.6
SENTENCE_MIN_WORDS: Final = 3
_ENDS: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD: Final = re.compile(r"\w+(?:['\u2019]\w+)?")
_NEGATIONS: Final = frozenset({"not", "never", "no", "none", "neither", "nothing", "without"})


class Evidence(StrEnum):
    """What a message says for what was looked for."""

    APPLICABLE = "applicable"
    WEAK = "weak"
    IRRELEVANT = "irrelevant"
    STALE = "stale"
    CONFLICTING = "conflicting"


def classify(found: Sequence[Found], query: str, *, now: datetime.datetime) -> list[Evidence]:
    """Return what each of the messages is worth, in their order."""
    disputed = _conflicting(found, query)
    return [_of(one, now=now, is_disputed=one.message_id in disputed) for one in found]


def _of(found: Found, *, now: datetime.datetime, is_disputed: bool) -> Evidence:
    similarity = found.similarity or 0.0
    if not found.has_words and similarity < bounds.SIMILARITY_MIN:
        return Evidence.WEAK if found.has_some_words else Evidence.IRRELEVANT
    if not found.has_words and similarity < bounds.SIMILARITY_WEAK:
        return Evidence.WEAK
    if now - found.created_at > datetime.timedelta(days=bounds.FRESH_DAYS):
        return Evidence.STALE
    return Evidence.CONFLICTING if is_disputed else Evidence.APPLICABLE


def _conflicting(found: Sequence[Found], query: str) -> set[int]:
    """Return the messages of which another says otherwise: "it is Monday", "it is Tuesday"."""
    asked = set(words_of(query))
    spoken = {one.message_id: _sentences(one.text, asked) for one in found}
    return {
        pk
        for (first, one), (second, other) in combinations(spoken.items(), 2)
        if any(_differ(a, b) for a in one for b in other)
        for pk in (first, second)
    }


def _sentences(text: str, asked: set[str]) -> list[frozenset[str]]:
    """Return the sentences that may have to do with what was asked, each as its words."""
    sentences = [
        frozenset(word.casefold() for word in _WORD.findall(sentence))
        for sentence in _ENDS.split(text[:COMPARED_CHARS])
        # a question asserts nothing
        if not sentence.rstrip().endswith("?")
    ]
    close = [words for words in sentences if len(words) >= SENTENCE_MIN_WORDS]
    # found by meaning alone, none of the words may stand in it
    told = [words for words in close if words & asked] or close
    return told[:SENTENCES_MAX]


def _differ(one: frozenset[str], other: frozenset[str]) -> bool:
    if one == other:
        return False
    if _is_negated(one) != _is_negated(other):
        one, other = _asserted(one), _asserted(other)
        return len(one & other) >= COMMON_MIN * len(one | other)
    says_otherwise = one - other and other - one
    return bool(says_otherwise) and len(one & other) >= COMMON_MIN * len(one | other)


def _is_negated(words: frozenset[str]) -> bool:
    return any(_negates(word) for word in words)


def _asserted(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if not _negates(word)) - {"do", "does", "did"}


def _negates(word: str) -> bool:
    return word in _NEGATIONS or word.endswith(("n't", "n\u2019t"))
