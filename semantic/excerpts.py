"""The part of a message that shows why it was found."""

from __future__ import annotations

import re
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
    words = words_of(query)
    if not words:
        return 0
    # on the text itself: folding it could move the places
    pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in words), re.IGNORECASE)
    places = [
        (match.start(), match.group().casefold())
        for match, _ in zip(pattern.finditer(text), range(PLACES_MAX), strict=False)
    ]
    if not places:
        return 0
    reach = bounds.EXCERPT_MAX_BYTES - LEAD_CHARS
    best, most = places[0][0], 0
    for index, (place, _) in enumerate(places):
        here = {word for at, word in places[index:] if at - place < reach}
        if len(here) > most:
            best, most = place, len(here)
    start = max(0, best - LEAD_CHARS)
    # not in the middle of a word
    space = re.compile(r"\s").search(text, start, best)
    return space.end() if start and space is not None else start


def _whole_words(kept: str, rest: str) -> str:
    """Return `kept` without the part of a word at its end, where words are not too long."""
    if rest[len(kept)].isspace():
        return kept
    cut = re.sub(r"\S{1,40}\Z", "", kept)
    return cut.rstrip() if cut.strip() else kept
