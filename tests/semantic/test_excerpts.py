"""Excerpts: the part of a message that shows why it was found, and no more than 800 bytes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semantic import bounds
from semantic.excerpts import MARK, excerpt, words_of

FILL = "Filling that says nothing much. " * 100


def test_a_short_text_is_its_own_excerpt() -> None:
    assert excerpt("My boat.\n", "boat") == "My boat.\n"
    exactly = "é" * (bounds.EXCERPT_MAX_BYTES // 2)
    assert excerpt(exactly, "boat") == exactly


@pytest.mark.parametrize("query", ["boat", "BOAT", '"my boat"', "boat -much", "boat OR ship"])
def test_a_long_one_is_cut_around_the_words_and_marked_on_both_sides(query: str) -> None:
    """behaviour V14"""
    found = excerpt(f"{FILL}My boat is called Marguerite. {FILL}", query)
    assert "My boat is called Marguerite." in found
    assert found.startswith(MARK)
    assert found.endswith(MARK)
    assert len(found.encode()) <= bounds.EXCERPT_MAX_BYTES


def test_where_most_of_the_words_stand_together_is_shown() -> None:
    text = f"The boat. {FILL} The red boat of the harbour master. {FILL}"
    assert "red boat of the harbour" in excerpt(text, "red boat harbour")


def test_the_beginning_and_the_end_are_not_marked_where_nothing_is_left_out() -> None:
    assert excerpt(f"My boat. {FILL}", "boat").startswith("My boat.")
    assert excerpt(f"{FILL}My boat.", "boat").endswith("My boat.")
    assert excerpt(FILL, "").startswith("Filling")


def test_words_are_not_cut_in_two() -> None:
    found = excerpt(f"{FILL}My boat. {FILL}", "boat").strip(MARK)
    assert set(found.split()) <= set(f"{FILL} My boat.".split())


def test_a_word_within_another_is_not_taken_for_it() -> None:
    assert "my art" in excerpt(f"cartography {FILL} my art {FILL}", "art")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("Boat", ["boat"]),
        ('"red boat" -big or harbour', ["harbour", "boat", "red"]),
        ('boat -"big red"', ["boat"]),
        ("zx-4417", ["4417", "zx"]),
        ("!!! -", []),
    ],
)
def test_the_words_of_a_query_are_those_it_looks_for(query: str, words: list[str]) -> None:
    assert words_of(query) == words


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=2_000),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=60),
    st.integers(1, 4),
)
def test_any_text_and_any_query_give_bounded_utf8_of_that_text(
    text: str, query: str, times: int
) -> None:
    """behaviour V8"""
    text *= times
    found = excerpt(text, query)
    assert len(found.encode()) <= bounds.EXCERPT_MAX_BYTES
    assert found == text or found.removeprefix(MARK).removesuffix(MARK) in text


def test_a_long_text_full_of_the_word_takes_no_time() -> None:
    began = time.thread_time()
    for text in ("boat " * 200_000, "x" * 1_000_000, "-" * 1_000_000):
        excerpt(text, "boat " * 100)
    assert time.thread_time() - began < 2
