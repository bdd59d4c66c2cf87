"""Values by the dozen for set-wise statements, as text that PostgreSQL reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from uuid import UUID

_encode: Final = json.JSONEncoder(default=str, ensure_ascii=False, separators=(",", ":")).encode


def array(values: Iterable[int | str | UUID | None]) -> str:
    """Return the literal of a one-dimensional array of numbers, uuids or texts.

    A list would do as well, but the driver adapts its elements one by one: for the thousands of
    ids of a batch, named in a dozen statements, that took longer than some of them. Cast it
    where the statement does not say the type: `%(ids)s::bigint[]`.
    """
    elements = list(values)
    kinds = set(map(type, elements))
    if kinds == {int}:
        return f"{{{','.join(map(str, elements))}}}"
    if kinds and all(issubclass(kind, str) for kind in kinds):
        quoted = '","'.join(cast("list[str]", elements))
        # nothing to escape but what stands between them
        if "\\" not in quoted and quoted.count('"') == 2 * (len(elements) - 1):
            return f'{{"{quoted}"}}'
    return f"{{{','.join(map(_element, elements))}}}"


def _element(value: int | str | UUID | None) -> str:
    if isinstance(value, str):
        if '"' in value or "\\" in value:
            value = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{value}"'
    return "NULL" if value is None else str(value)


def records(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the JSON of a few rows of many columns, for `json_to_recordset`.

    An array a column takes the server longer: with twelve columns of five rows 50 µs.
    """
    return _encode(list(rows))


def typed(columns: Mapping[str, str]) -> str:
    """Return the column definitions under which a statement reads `records`."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
