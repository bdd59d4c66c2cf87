"""A text that says nothing to Python says nothing to the database, in every locale."""

from __future__ import annotations

import sys

import pytest
from django.db import connection

from recovery.blanks import BLANKS, has_words

pytestmark = pytest.mark.django_db

# As the database's own locale has it, and as others have it that every server knows.
COLLATIONS = ["default", "C", "POSIX", "ucs_basic"]
# They take no room, or stand for a mark; Python strips none of them.
NO_BLANKS = ["\u180e", "\u200b", "\u2060", "\ufeff", "\x7f", "\x08", "\x84", "\x86", "."]


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
