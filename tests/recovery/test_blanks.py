"""A text that says nothing to Python says nothing to the database, in every locale."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from django.db import connection

from recovery.blanks import BLANKS, has_words, shows_something

pytestmark = pytest.mark.django_db

# As the database's own locale has it, and as others have it that every server knows.
COLLATIONS = ["default", "C", "POSIX", "ucs_basic"]
# They take no room, or stand for a mark; Python strips none of them.
NO_BLANKS = ["\u180e", "\u200b", "\u2060", "\ufeff", "\x7f", "\x08", "\x84", "\x86", "."]


# Unicode's Default_Ignorable_Code_Point, and the braille pattern without a dot.
UNSEEN = [
    *"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u2800\u3164\ufeff\uffa0",
    *(chr(code) for code in range(0x180B, 0x1810)),
    *(chr(code) for code in range(0x200B, 0x2010)),
    *(chr(code) for code in range(0x202A, 0x202F)),
    *(chr(code) for code in range(0x2060, 0x2070)),
    *(chr(code) for code in range(0xFE00, 0xFE10)),
    *(chr(code) for code in range(0xFFF0, 0xFFFC)),
    *(chr(code) for code in range(0x1BCA0, 0x1BCA4)),
    *(chr(code) for code in range(0x1D173, 0x1D17B)),
    *(chr(code) for code in range(0xE0000, 0xE1000)),
]


@pytest.mark.parametrize("kind", [BLANKS, UNSEEN, map(chr, [*range(0x20), *range(0x7F, 0xA0)])])
def test_what_no_reader_sees_shows_nothing(kind: Iterable[str]) -> None:
    unseen = list(kind)
    assert not [hex(ord(one)) for one in unseen if shows_something(one)]
    assert not shows_something("".join(unseen))
    assert shows_something(f"{''.join(unseen)}.{''.join(unseen)}")


@pytest.mark.parametrize(
    "text", [".", "\u2801", "\u3131", "\u1161", "\ufffd", "\u263a\ufe0f", "e\u0301", "\ue000"]
)
def test_what_a_reader_sees_shows_something(text: str) -> None:
    assert shows_something(text)


def test_nothing_at_all_shows_nothing() -> None:
    assert not shows_something("")


def test_blanks_are_what_python_strips() -> None:
    every = map(chr, range(sys.maxunicode + 1))
    assert "".join(character for character in every if not character.strip()) == BLANKS


@pytest.mark.parametrize("collation", COLLATIONS)
def test_the_database_finds_words_where_python_does(collation: str) -> None:
    texts = [*BLANKS, *NO_BLANKS, "", BLANKS, f"{BLANKS}a{BLANKS}", "a b", "\u2003.\x85"]
    with connection.cursor() as cursor:
        words = has_words(f'(text COLLATE "{collation}")')
        cursor.execute(
            f"SELECT array_agg({words} ORDER BY n) "
            "FROM unnest(%s::text[]) WITH ORDINALITY t(text, n)",
            [texts],
        )
        [(found,)] = cursor.fetchall()
    assert found == [bool(text.strip()) for text in texts]
