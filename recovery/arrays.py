"""Arrays for set-wise statements, as text that PostgreSQL reads."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID


def array(values: Iterable[int | str | UUID | None]) -> str:
    """Return the literal of a one-dimensional array of numbers, uuids or texts.

    A list would do as well, but the driver adapts its elements one by one: for the thousands of
    ids of a batch, named in a dozen statements, that took longer than some of them. Cast it
    where the statement does not say the type: `%(ids)s::bigint[]`.
    """
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: int | str | UUID | None) -> str:
    if isinstance(value, str):
        if '"' in value or "\\" in value:
            value = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{value}"'
    return "NULL" if value is None else str(value)
