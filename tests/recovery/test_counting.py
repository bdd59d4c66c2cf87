"""Numbers in sentences."""

from __future__ import annotations

from recovery.counting import counted


def test_one_thing_is_singular_and_any_other_number_plural() -> None:
    said = [counted(number, "byte") for number in (0, 1, 2, 2_000)]
    assert said == ["0 bytes", "1 byte", "2 bytes", "2000 bytes"]
