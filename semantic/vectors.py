"""Vectors on their way to the database, as the bytes that pgvector reads.

As text a vector of 256 numbers takes longer to write and to read than all else about its row,
and a tenth of the time of a search.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types import TypeInfo

# The type is an extension's, so each database numbers it itself; arrays must say the number.
_type_numbers: Final[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()
# How many numbers, and two bytes that mean nothing.
_HEADER: Final = struct.Struct("!HH")
# One dimension, no nulls, the type of the elements; how many, counted from one.
_ARRAY_HEADER: Final = struct.Struct("!iiIii")


class VectorBytes:
    """A parameter of type `vector`: write `%(name)s::vector`."""

    __slots__ = ("data",)

    def __init__(self, vector: NDArray[np.float32]) -> None:
        self.data = _HEADER.pack(len(vector), 0) + vector.astype(">f4").tobytes()


class VectorArray:
    """A parameter of type `vector[]`: write `%(name)s::vector[]`."""

    __slots__ = ("data",)

    def __init__(self, vectors: Sequence[NDArray[np.float32]]) -> None:
        count, dimensions = len(vectors), len(vectors[0])
        row = np.dtype(
            [
                ("bytes", ">i4"),
                ("dimensions", ">i2"),
                ("unused", ">i2"),
                ("numbers", ">f4", dimensions),
            ]
        )
        rows = np.zeros(count, row)
        rows["bytes"] = row.itemsize - 4
        rows["dimensions"] = dimensions
        rows["numbers"] = np.stack(vectors)
        self.data = _ARRAY_HEADER.pack(1, 0, _type_number(), count, 1) + rows.tobytes()


class _BytesDumper(Dumper):
    """Leaves the type of the parameter to its cast."""

    format = Format.BINARY
    oid = 0

    def dump(self, obj: VectorBytes | VectorArray) -> bytes:
        """Return the bytes made before."""
        return obj.data


psycopg.adapters.register_dumper(VectorBytes, _BytesDumper)
psycopg.adapters.register_dumper(VectorArray, _BytesDumper)


def _type_number() -> int:
    """Return the number of pgvector's type in the database of this thread's session."""
    database = connections[DEFAULT_DB_ALIAS]
    database.ensure_connection()
    session: psycopg.Connection[Any] = database.connection
    number = _type_numbers.get(session)
    if number is None:
        with database.wrap_database_errors:
            found = TypeInfo.fetch(session, "vector")
        assert found is not None  # noqa: S101  migration 0001 makes it
        number = _type_numbers[session] = found.oid
    return number
