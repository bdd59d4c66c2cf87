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
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: int | str | UUID | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
