"""Search by words: as a person writes them, all of them, some of them, and phrases."""

from __future__ import annotations

import pytest
from django.utils import timezone

from recovery.errors import Refused
from recovery.executor import in_thread
from semantic import bounds, candidates, ranking
from semantic.evidence import classify
from semantic.search import Scope
from tests.factories import MessageFactory, TextChunkFactory, TurnFactory, fence_of
from tests.semantic.searching import (
    by_words,
    conversation_of,
    derive,
    look,
    texts,
)
from turns.models import Turn
from turns.transitions import finish_turn

pytestmark = pytest.mark.django_db(transaction=True)

BOAT = "My boat is called Marguerite."
SHIP = "The ship leaves at noon."


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here bounds change: no statement may be that of before."""
    monkeypatch.setattr(ranking, "_written", ranking._written.__wrapped__)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("ZX-4417-QQ", ["The code is ZX-4417-QQ."]),
        ("zx-4417-qq", ["The code is ZX-4417-QQ."]),
        ("well-known", ["A well-known fact."]),
        ("ann@example.org", ["Write to ann@example.org today."]),
        ("https://example.org/a?b=1", ["See https://example.org/a?b=1 for it."]),
        ('"red boat"', ["A big red boat."]),
        ("red boat", ["A red and big boat.", "A big red boat."]),
        ("big -red", ["A big hat."]),
        ("code OR hat", ["A big hat.", "The code is ZX-4417-QQ."]),
        ("HEISSE", []),
        ("heiße", ["Die heiße Suppe."]),
        ("red zeppelin -big", []),
        ('big -"red boat"', ["A red and big boat.", "A big hat."]),
        ('-"red boat" boat -"big hat"', ["A red and big boat."]),
        ('boat - - "red boat"', ["A big red boat."]),
        ('"big red" -"red boat"', []),
        ('hat -"well-known fact"', ["A big hat."]),
        ("-red", []),
        ("red' OR 1=1 --", ["A red and big boat.", "A big red boat."]),
        ("person 1", []),
        ("\u20ac", []),
    ],
)
async def test_words_are_met_as_a_person_writes_them(query: str, expected: list[str]) -> None:
    mine = await conversation_of(
        "The code is ZX-4417-QQ.", "A well-known fact.", "Write to ann@example.org today.",
        "See https://example.org/a?b=1 for it.", "A big red boat.", "A red and big boat.",
        "A big hat.", "Die heiße Suppe.",
    )  # fmt: skip
    assert sorted(texts(await by_words(query, Scope(mine.owner_id)))) == sorted(expected)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("boat - big", ["A big red boat.", "A red and big boat."]),
        ("--red boat", ["A big red boat.", "A red and big boat."]),
        ("boat -(hat)", ["A big hat.", "A big red boat.", "A red and big boat."]),
        ("boat -red", []),
        ('"red boat"-hat', []),
        ("boat\u00a0-red", []),
        ("boat -\u201cred boat\u201d", ["A red and big boat."]),
        ("\u00abbig red\u00bb", ["A big red boat."]),
        ("\u201ered boat\u201c", ["A big red boat."]),
        ("- boat\n- red", ["A big red boat.", "A red and big boat."]),
        ("| boat |" + " --- |" * 40, ["A big red boat.", "A red and big boat."]),
        (" ".join(["-nothing"] * 40) + " boat", ["A big red boat.", "A red and big boat."]),
        ("boat " + "-" * 400, ["A big red boat.", "A red and big boat."]),
        ("boat <" + "-" * 40, ["A big red boat.", "A red and big boat."]),
        ("boat <- red", ["A big red boat.", "A red and big boat."]),
        ("boat<-red", ["A big red boat.", "A red and big boat."]),
        ("boat http://" + "-" * 40, ["A big red boat.", "A red and big boat."]),
        ("boat http://-red", ["A big red boat.", "A red and big boat."]),
        ("boat -http://red", []),
        ("boat -http:// red", ["A big red boat.", "A red and big boat."]),
        ("boat -red&hat", ["A big red boat.", "A red and big boat."]),
        ("boat -red:boat", ["A red and big boat."]),
        ("boat -red:", []),
    ],
)
async def test_a_dash_excludes_the_word_right_behind_it_and_else_means_nothing(
    query: str, expected: list[str]
) -> None:
    mine = await conversation_of("A big red boat.", "A red and big boat.", "A big hat.")
    assert sorted(texts(await by_words(query, Scope(mine.owner_id)))) == (expected)


async def test_blanks_of_any_kind_separate_words() -> None:
    mine = await conversation_of("A big red boat.", "A red and big boat.", "A big hat.")
    blanks = [chr(code) for code in range(0x10000) if chr(code).isspace()]
    assert {"\x85", "\xa0", "\u2003", "\u2028", "\u202f", "\u3000"} < set(blanks)
    for blank in blanks:
        for query in (f"big{blank}-red", f'big{blank}-"red"', f"zeppelin{blank}or{blank}hat"):
            found = await by_words(query, Scope(mine.owner_id))
            assert texts(found) == ["A big hat."], ascii(query)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("big or -red", ["A big hat."]),
        ("-red or big", ["A big hat."]),
        ("-red OR big", ["A big hat."]),
        ('big or -"red boat"', ["A big hat.", "A red and big boat."]),
        ('-"red boat"or big', ["A big hat.", "A red and big boat."]),
        ("big or - -red", ["A big hat."]),
        ("zeppelin or -red or hat", ["A big hat."]),
        ("hat or or -red", ["A big hat."]),
        ("big -red or", ["A big hat."]),
        ("zeppelin or big -red", ["A big hat."]),
        # of its own side alone
        ("boat -big or hat", ["A big hat."]),
        ("boat or hat -big", ["A big red boat.", "A red and big boat."]),
        ("-red or -big", []),
        ("-red -boat", []),
    ],
)
async def test_an_or_beside_an_exclusion_finds_what_the_other_side_does_without_it(
    query: str, expected: list[str]
) -> None:
    mine = await conversation_of("A big red boat.", "A red and big boat.", "A big hat.")
    assert sorted(texts(await by_words(query, Scope(mine.owner_id)))) == expected


async def test_a_word_that_begins_with_or_joins_nothing() -> None:
    mine = await conversation_of("O meu orçamento.", "O meu carro.", "See or.example.org.")
    for query, expected in (
        ("meu orçamento", ["O meu orçamento."]),
        ("meu or orçamento", ["O meu carro.", "O meu orçamento."]),
        ("see or.example.org", ["See or.example.org."]),
        ("orçamento -carro", ["O meu orçamento."]),
        ('"meu orçamento"', ["O meu orçamento."]),
        ("carro or(see)", ["O meu carro.", "See or.example.org."]),
    ):
        found = await by_words(query, Scope(mine.owner_id))
        assert sorted(texts(found)) == expected, query


@pytest.mark.parametrize(
    "query", ["---", "- -- -", " \u00a0-", '"', '""', '-""', "!!! ...", "%", "http://"]
)
async def test_signs_alone_look_for_nothing(query: str) -> None:
    with pytest.raises(Refused) as refused:
        await by_words(query, Scope(1))
    assert refused.value.code == "empty_query"


async def test_who_quotes_or_excludes_gets_nothing_else_by_meaning() -> None:
    mine = await conversation_of("A big red boat.", "A red and big boat.", SHIP)
    for query, expected in (('"red boat"', ["A big red boat."]), ("ship -red", [SHIP])):
        found = await look(query, Scope(mine.owner_id))
        assert (found.mode, texts(found)) == ("hybrid", expected)


async def test_a_question_finds_what_has_its_rarest_words_where_nothing_has_all() -> None:
    mine = await conversation_of(
        *[f"What did I say about the week number {n}?" for n in range(6)],
        "The harbour was closed.", "Soup.", "The harbour of Lisbon, last week.",
    )  # fmt: skip
    scope = Scope(mine.owner_id)
    found = await by_words("What did I say about the harbour in Lisbon?", scope)
    assert texts(found) == ["The harbour of Lisbon, last week.", "The harbour was closed."]
    assert not any(hit.found.has_words for hit in found.hits)
    assert all(hit.found.has_some_words for hit in found.hits)
    assert texts(await by_words("harbour zeppelin", scope)) == texts(found)
    for query in ("harbour lisbon", "harbour"):
        found = await by_words(query, scope)
        assert all(hit.found.has_words for hit in found.hits), query
        assert not any(hit.found.has_some_words for hit in found.hits), query
    for query in ("zeppelin", "a zeppelin", '"harbour zeppelin"', "harbour -closed zeppelin"):
        assert texts(await by_words(query, scope)) == [], query


async def test_a_question_is_answered_by_meaning_and_by_some_of_its_words_together() -> None:
    mine = await conversation_of(BOAT, SHIP, "Soup for Marguerite.")
    found = await look("which vessel is Marguerite?", Scope(mine.owner_id))
    assert (found.mode, texts(found)[0], len(found.hits)) == ("hybrid", BOAT, 3)
    told = classify([hit.found for hit in found.hits], "Marguerite", now=timezone.now())
    assert dict(zip(texts(found), told, strict=True))["Soup for Marguerite."] == "weak"


async def test_a_word_of_too_many_messages_does_not_tell_them_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "SOME_WORDS_MESSAGES", 3)
    mine = await conversation_of(*[f"Boat number {n}." for n in range(4)], "A red hat.")
    scope = Scope(mine.owner_id)
    assert texts(await by_words("boat zeppelin", scope)) == []
    assert texts(await by_words("red boat", scope)) == ["A red hat."]


async def test_a_phrase_is_looked_for_in_the_best_by_its_words_and_no_further_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = await conversation_of(
        "Boat, red.", "A boat, red.", "A boat is red.", "Some say that a red boat is best."
    )
    scope = Scope(mine.owner_id)
    for looked_at, found, left in ((4, 1, 3), (3, 0, 3), (2, 0, 2)):
        monkeypatch.setattr(bounds, "PHRASE_CANDIDATES", looked_at)
        assert len((await by_words('"red boat"', scope)).hits) == found
        assert len((await by_words('red -"red boat"', scope)).hits) == left


async def test_an_answer_that_ended_after_it_was_asked_takes_up_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "CANDIDATES", 2)
    mine = await conversation_of("A boat, some sails and a long rope.", "A boat, some sails.")

    def begin() -> tuple[Turn, int]:
        turn = TurnFactory.create(conversation=mine, running=True, asked=True)
        asking = MessageFactory.create(conversation=mine, text="Which one?")
        return turn, asking.pk

    def end(turn: Turn) -> None:
        TextChunkFactory.create(turn=turn, text="Boat")
        finish_turn(fence_of(turn), Turn.State.COMPLETED, last_seq=1)
        derive()

    turn, asking = await in_thread(begin)
    scope = Scope(mine.owner_id, before_message_id=asking)
    before = await look("boat", scope)
    assert len(before.hits) == 2
    await in_thread(end, turn)
    after = await look("boat", scope)
    assert [(hit.message_id, hit.score) for hit in after.hits] == [
        (hit.message_id, hit.score) for hit in before.hits
    ]
    assert "Boat" in texts(await look("boat", Scope(mine.owner_id)))
