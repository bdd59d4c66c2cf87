"""The part of a message that shows why it was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from recovery.bounds import cut_utf8
from semantic import bounds

# Stands where text was left out.
MARK: Final = "…"
# How much of an excerpt stands before the first word found.
LEAD_CHARS: Final = 120
# Places looked at in a long text.
PLACES_MAX: Final = 200
# What a query may hold besides the words it looks for: something not to be found, and "or".
_NO_WORDS: Final = re.compile(r'(?<!\S)-(?:"[^"]*"|\S+)|(?<!\S)or(?!\S)', re.IGNORECASE)
_WORD: Final = re.compile(r"\w+")


def words_of(query: str) -> list[str]:
    """Return the words that `query` looks for, each once, longest first."""
    found = dict.fromkeys(word.casefold() for word in _WORD.findall(_NO_WORDS.sub(" ", query)))
    return sorted(found, key=len, reverse=True)


def excerpt(text: str, query: str) -> str:
    """Return at most `EXCERPT_MAX_BYTES` of `text`, around the words of `query` that stand
    closest together. What is left out before and behind is marked."""
    if len(text.encode()) <= bounds.EXCERPT_MAX_BYTES:
        return text
    start = _start(text, query)
    lead = MARK if start else ""
    room = bounds.EXCERPT_MAX_BYTES - len(lead.encode())
    rest = text[start:]
    if len(rest.encode()) <= room:
        return lead + rest
    kept = cut_utf8(rest, room - len(MARK.encode()))
    return lead + _whole_words(kept, rest) + MARK


def _start(text: str, query: str) -> int:
    pattern = _pattern(query)
    if pattern is None:
        return 0
    # on the text itself: folding it could move the places
    places = [
        (match.start(), match.group().casefold())
        for match in islice(pattern.finditer(text), PLACES_MAX)
    ]
    if not places:
        return 0
    best = _closest(places, bounds.EXCERPT_MAX_BYTES - LEAD_CHARS)
    start = max(0, best - LEAD_CHARS)
    # not in the middle of a word
    space = re.compile(r"\s").search(text, start, best)
    return space.end() if start and space is not None else start


@lru_cache(maxsize=64)
def _pattern(query: str) -> re.Pattern[str] | None:
    """Return what finds the words of `query`, the longest first; one for all hits."""
    words = words_of(query)
    if not words:
        return None
    return re.compile("|".join(rf"\b{re.escape(word)}\b" for word in words), re.IGNORECASE)


def _closest(places: Sequence[tuple[int, str]], reach: int) -> int:
    """Return the first place from which most different words are within `reach`."""
    best, most = places[0][0], 0
    here: Counter[str] = Counter()
    end = 0
    for place, word in places:
        while end < len(places) and places[end][0] - place < reach:
            here[places[end][1]] += 1
            end += 1
        if len(here) > most:
            best, most = place, len(here)
        here[word] -= 1
        if not here[word]:
            del here[word]
    return best


def _whole_words(kept: str, rest: str) -> str:
    """Return `kept` without the part of a word at its end, where words are not too long."""
    if rest[len(kept)].isspace():
        return kept
    cut = re.sub(r"\S{1,40}\Z", "", kept)
    return cut.rstrip() if cut.strip() else kept
