"""Looks for what must not have been said, wherever words could have ended up."""

from __future__ import annotations

from typing import Final

from django.apps import apps
from django.db import connection

FRAGMENT_CHARS: Final = 12


def fragments(text: str) -> set[str]:
    """Return every piece of `text` long enough to give it away."""
    return {text[at : at + FRAGMENT_CHARS] for at in range(len(text) - FRAGMENT_CHARS + 1)}


def require_unsaid(place: str, words: str, *secrets: str) -> None:
    """Fail naming the place, and not the secret, when `words` hold a piece of one."""
    for secret in secrets:
        found = [piece for piece in fragments(secret) if piece in words]
        assert not found, f"{len(found)} pieces of a secret in {place}"


def rows_beside_what_was_said() -> str:
    """Return every column of every row, but for the words of the person themselves."""
    told: list[str] = []
    with connection.cursor() as cursor:
        for model in apps.get_models():
            table = model._meta.db_table
            without = " - 'text'" if table == "turns_message" else ""
            cursor.execute(f'SELECT (to_jsonb(t){without})::text FROM "{table}" t')
            told += [row for (row,) in cursor.fetchall()]
    return "\n".join(told)
