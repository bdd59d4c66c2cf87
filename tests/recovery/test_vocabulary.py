"""Codes, lifecycles, bounds and fences: the words everything else is made of."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import bounds
from recovery.errors import ERROR_CODE_MAX_CHARS, ErrorCode, IllegalTransition, StaleFence
from recovery.fences import Fence, claimed_mark
from recovery.lifecycles import Lifecycle
from recovery.models import Cause

DOOR = Lifecycle(
    {
        "open": frozenset({"closed", "broken"}),
        "closed": frozenset({"open"}),
        "broken": frozenset(),
    }
)


def test_every_code_is_short_and_has_a_public_sentence() -> None:
    for code in ErrorCode:
        assert len(code.value) <= ERROR_CODE_MAX_CHARS
        assert code.value.replace("_", "").isalpha()
        assert code.label.endswith(".")


def test_every_cause_is_a_code() -> None:
    for cause in Cause:
        assert ErrorCode(cause.value)


def test_a_lifecycle_allows_listed_moves_alone() -> None:
    DOOR.require("open", "closed")
    for state, following in (("broken", "open"), ("open", "open"), ("closed", "broken")):
        with pytest.raises(IllegalTransition):
            DOOR.require(state, following)
    assert DOOR.terminal == frozenset({"broken"})
    assert DOOR.open == frozenset({"open", "closed"})


def test_a_fence_fits_its_own_claim_alone() -> None:
    token = uuid4()
    fence = Fence(1, 3, token)
    fence.require(3, token)
    for generation, other in ((4, token), (2, token), (3, uuid4()), (3, None)):
        with pytest.raises(StaleFence):
            fence.require(generation, other)
    assert claimed_mark(3) >> 32 == 3


@given(st.text(alphabet=st.characters(codec=None)), st.integers(0, 40))
def test_a_cut_text_fits_and_is_a_beginning(text: str, limit: int) -> None:
    text = bounds.storable(text)
    cut = bounds.cut_utf8(text, limit)
    assert len(cut.encode()) <= limit
    assert text.startswith(cut)
    assert len(text[: len(cut) + 1].encode()) > limit or cut == text


@given(st.text(alphabet=st.characters(codec=None)))
def test_what_is_storable_is_utf8_without_nul(text: str) -> None:
    stored = bounds.storable(text)
    assert "\x00" not in stored
    assert stored.encode().decode() == stored
    assert bounds.storable(stored) == stored


def test_escaped_pairs_are_joined_and_lone_surrogates_replaced() -> None:
    """Failure H37."""
    assert bounds.storable("\ud83d\ude00") == "\U0001f600"
    assert bounds.storable("a\ud83db\ude00c") == "a\ufffdb\ufffdc"
    assert bounds.storable("a\x00b") == "a\ufffdb"
