"""Arrays and records arrive as the values they were made of."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db import connection

from recovery.arrays import array, records, typed
from recovery.models import Cause

pytestmark = pytest.mark.django_db


def read(literal: str, kind: str) -> list[object]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT %s::{kind}[]", [literal])
        values: list[object] = cursor.fetchone()[0]
        return values


def test_numbers_and_uuids_arrive() -> None:
    owners = [uuid4(), None, uuid4()]
    assert read(array([1, -2, 2**62]), "bigint") == [1, -2, 2**62]
    assert read(array(owners), "uuid") == owners
    assert read(array(()), "bigint") == []


def test_texts_arrive_whatever_they_hold() -> None:
    texts = [
        "",
        "NULL",
        "null",
        '"',
        "\\",
        '\\"',
        "{a,b}",
        "a,b",
        " ",
        "'; --",
        "%s",
        "é\n",
        None,
    ]
    assert read(array(texts), "text") == texts


def test_a_word_of_ours_arrives_as_its_value() -> None:
    assert read(array([Cause.RUNTIME_LOST]), "text") == ["runtime_lost"]


def test_json_arrives() -> None:
    assert read(array(['{"note": "a \\"b\\" \\\\ c"}', None]), "text") == [
        '{"note": "a \\"b\\" \\\\ c"}',
        None,
    ]


def test_records_arrive_column_by_column_whatever_they_hold() -> None:
    columns = {"number": "bigint", "word": "text", "key": "uuid", "said": "text"}
    rows = [
        {
            "number": 2**62,
            "word": Cause.RUNTIME_LOST,
            "key": uuid4(),
            "said": '"\\ é\n😀 {a,b}',
        },
        {"number": -1, "word": "", "key": None, "said": "NULL"},
    ]

    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT * FROM json_to_recordset(%s::json) AS r({typed(columns)})", [records(rows)]
        )
        told = cursor.fetchall()

    assert told == [tuple(row.values()) for row in rows]
