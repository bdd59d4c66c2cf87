"""What a query is read as: by us, and by PostgreSQL, which must be the same."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from typing import Final

import pytest
from django.db import connection

from recovery.errors import Refused
from semantic import candidates, ranking
from semantic.candidates import Scope
from semantic.search import query_of

pytestmark = pytest.mark.django_db

QUERIES: Final = 6_000
PIECES: Final = (
    "red", "boat", "x", "12", "été", "-", "-", "--", "-" * 40, " ", " ", " ", "\t", '"', '"',
    "\u201c", "<", ">", "!", "&", "|", "(", ")", ":", "*", "'", "\\", ",", ".", "_", "or", "OR",
    " or ", "orée", "\u3000", "\u00a0", "\u2028", "://", "http://", "a.b://", "/",
)  # fmt: skip
_SCHEMES: Final = re.compile(r"\b(?:[a-z][a-z0-9+.-]*://-*)+", re.IGNORECASE)
_EXCLUDED: Final = re.compile(r"!+(?:\( ([^()]*) \)|('[^']*'))")
_READ: Final = """SELECT websearch_to_tsquery('simple', sent)::text,
    tsvector_to_array(to_tsvector('simple', excluded)),
    querytree(websearch_to_tsquery('simple', sent)) NOT IN ('', 'T')
    FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS a (sent, excluded, n) ORDER BY n"""


def excluded_by_the_rules(text: str) -> list[str]:
    """Return the words and phrases that docs/search.md says a query excludes."""
    text = "".join(" " if one.isspace() else one for one in text.replace("\u201c", '"'))
    text = _SCHEMES.sub(lambda m: "" if text[m.start() - 1 : m.start()] == "-" else " ", text)
    excluded = []
    at = 0
    while at < len(text):
        begins = at == 0 or text[at - 1] == " "
        excludes = begins and text[at] == "-" and bool(re.match(r'[\w"]', text[at + 1 :]))
        start = at + excludes
        is_phrase = text[start] == '"'
        ends = '"' if is_phrase else ' "'
        end = min(text.find(sign, start + is_phrase) % (len(text) + 1) for sign in ends)
        operand = text[start + is_phrase : end]
        at = end + (text[end : end + 1] == ends[0])
        if excludes:
            excluded.append(operand if is_phrase else operand.rstrip(string.punctuation))
    return excluded


def read(queries: Sequence[str]) -> list[tuple[str, list[str], bool]]:
    """Return what PostgreSQL makes of each query, the words that it is to exclude, and
    whether there is anything to find."""
    sent = [candidates.values(query_of(query), Scope(1))["query"] for query in queries]
    excluded = [" ".join(excluded_by_the_rules(query)) for query in queries]
    with connection.cursor() as cursor:
        cursor.execute(_READ, [sent, excluded])
        return cursor.fetchall()


def excluded_in(said: str) -> set[str]:
    return {
        word
        for several, one in _EXCLUDED.findall(said)
        for word in re.findall(r"'([^']*)'", several or one)
    }


def queries() -> list[str]:
    """Return queries made of what separates, excludes, quotes and joins, always the same."""
    chosen = random.Random(9)
    made: list[str] = []
    while len(made) < QUERIES:
        query = "".join(chosen.choice(PIECES) for _ in range(chosen.randint(1, 12)))
        try:
            query_of(query)
        except Refused:
            continue
        made.append(query)
    return made


def test_postgresql_excludes_what_the_rules_say_and_nothing_else() -> None:
    made = queries()
    wrong = [
        (query, said, words)
        for query, (said, words, _) in zip(made, read(made), strict=True)
        if excluded_in(said) != set(words)
    ]
    assert wrong == []


def test_something_can_be_found_wherever_a_word_is_looked_for() -> None:
    """Whatever is excluded, and on whichever side of an "or"."""
    made = [query for query in queries() if "-" in query]
    wrong = [
        (query, said)
        for query, (said, _, is_found) in zip(made, read(made), strict=True)
        if not is_found and re.search(r"(?<!!)'[^'\W]", re.sub(_EXCLUDED, "", said))
    ]
    assert wrong == []


def test_vectors_only_help_to_order_where_something_is_excluded_or_quoted() -> None:
    for query in queries():
        sent = query_of(query)
        is_bound = bool(excluded_by_the_rules(query)) or '"' in sent
        assert (ranking._OPERATORS.search(sent) is not None) == is_bound, query


def test_no_query_makes_a_statement_fail() -> None:
    for query in queries()[::15]:
        ranking.by_words(query_of(query), Scope(1), limit=1)
