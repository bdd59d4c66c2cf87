"""How search reaches rows: those of one person, by indexes, whatever others have said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from recovery.executor import in_thread
from semantic import bounds, candidates, indexes, ranking, search
from semantic.candidates import Vectors
from semantic.models import Manifest, MessageWords
from semantic.search import Results, Scope
from semantic.vectors import VectorBytes
from tests.factories import ConversationFactory, MessageFactory
from tests.semantic.searching import KnowsMeanings, derive
from turns.models import Conversation

pytestmark = pytest.mark.django_db(transaction=True)

MINE = 20
THEIRS = 5_000
_THEIR_MESSAGES = """
    INSERT INTO turns_message (id, conversation_id, role, state, text, digest, created_at,
        finished_at)
    SELECT %(above)s + n, %(conversation)s, 'user', 'complete', 'A boat and a ship.', 'd',
        now(), now() FROM generate_series(1, %(count)s) AS n
"""
_THEIR_WORDS = """
    INSERT INTO semantic_messagewords (message_id, conversation_id, person_id, words)
    SELECT id, conversation_id, %(person)s, strip(to_tsvector('simple', text))
        || array_to_tsvector(ARRAY['person ' || %(person)s])
    FROM turns_message WHERE id > %(above)s
"""
_THEIR_VECTORS = """
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT %(manifest)s, id, conversation_id, %(person)s, id, 1, digest, %(vector)s::vector
    FROM turns_message WHERE id > %(above)s
"""


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here bounds change: no statement may be that of before."""
    monkeypatch.setattr(ranking, "_written", ranking._written.__wrapped__)


@pytest.fixture
def mine() -> Conversation:
    """A conversation beside that of somebody who has said 250 times as much of the same."""
    conversation = ConversationFactory.create()
    for number in range(MINE):
        MessageFactory.create(conversation=conversation, text=f"My boat number {number}.")
    derive()
    theirs = ConversationFactory.create()
    values = {
        "above": 1_000_000,
        "count": THEIRS,
        "conversation": theirs.pk,
        "person": theirs.owner_id,
        "manifest": Manifest.objects.get(state="active").pk,
        "vector": f"{KnowsMeanings().meaning('A boat and a ship.').tolist()}",
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for statement in (_THEIR_MESSAGES, _THEIR_WORDS, _THEIR_VECTORS):
            cursor.execute(statement, values)
    with connection.cursor() as cursor:
        for table in ("turns_message", "semantic_messagewords", "semantic_embedding"):
            cursor.execute(f"VACUUM (ANALYZE) {table}")
    return conversation


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


def explained(statement: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of the plan, as it was carried out."""
    boat = VectorBytes(KnowsMeanings().meaning("boat"))
    ((plan,),) = ranking.rows_of(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", {**values, "vector": boat}
    )
    return list(nodes(plan[0]["Plan"]))


@pytest.mark.parametrize("scope", ["person", "conversation", "turn"])
def test_a_search_touches_rows_of_its_own_person_alone(mine: Conversation, scope: str) -> None:
    scopes = {
        "person": Scope(mine.owner_id),
        "conversation": Scope(mine.owner_id, mine.pk),
        "turn": Scope(mine.owner_id, mine.pk, 999_999),
    }
    manifest = Manifest.objects.get(state="active")
    asked = ranking.asked("boat", scopes[scope], manifest, Vectors.FEW, limit=11)
    tables = {"semantic_messagewords": 0, "semantic_embedding": 0}
    for node in explained(*asked):
        if node.get("Relation Name") in tables:
            assert node["Node Type"] != "Seq Scan", node
            tables[node["Relation Name"]] += (
                node["Actual Rows"]
                + node.get("Rows Removed by Filter", 0)
                + node.get("Rows Removed by Index Recheck", 0)
            ) * node["Actual Loops"]
    # vectors are counted before they are compared
    assert tables == {"semantic_messagewords": MINE, "semantic_embedding": 2 * MINE}


def test_the_texts_of_the_best_alone_are_fetched(mine: Conversation) -> None:
    manifest = Manifest.objects.get(state="active")
    best = MINE // 2
    asked = ranking.asked("boat", Scope(mine.owner_id), manifest, Vectors.FEW, limit=best)
    fetched = [node for node in explained(*asked) if node.get("Alias") == "m"]
    assert [node["Actual Rows"] * node["Actual Loops"] for node in fetched] == [best]


async def test_what_the_index_finds_is_what_comparing_each_would(
    mine: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the index gives up early, because nearly all it meets is another person's."""
    manifest = await in_thread(lambda: Manifest.objects.get(state="active"))
    embedder = KnowsMeanings()

    async def found() -> Results:
        return await search.search(
            "vessel", Scope(mine.owner_id), embedder_for=lambda _: embedder
        )

    monkeypatch.setattr(bounds, "CANDIDATES", 10)
    exactly = await found()
    assert len(exactly.hits) == bounds.HITS_MAX
    monkeypatch.setattr(bounds, "EXACT_MAX_VECTORS", MINE - 1)
    try:
        assert await in_thread(indexes.build_index, manifest)
        for most in (bounds.INDEX_SCAN_TUPLES, 1):
            monkeypatch.setattr(bounds, "INDEX_SCAN_TUPLES", most)
            again = await found()
            assert again.mode == "hybrid"
            assert [hit.score for hit in again.hits] == [hit.score for hit in exactly.hits]
    finally:
        await in_thread(indexes.drop_index, manifest)


def test_the_indexs_own_statement_goes_by_the_index(mine: Conversation) -> None:
    manifest = Manifest.objects.get(state="active")
    theirs = MessageWords.objects.exclude(person=mine.owner_id)[0].person_id
    try:
        assert indexes.build_index(manifest)
        for vectors in (Vectors.BY_INDEX, Vectors.FEW, Vectors.EACH):
            asked = ranking.asked("boat", Scope(theirs), manifest, vectors, limit=11)
            used = {node.get("Index Name") for node in explained(*asked)}
            assert (indexes.index_name(manifest.pk) in used) is (vectors is Vectors.BY_INDEX)
    finally:
        indexes.drop_index(manifest)


def test_who_has_very_many_vectors_is_asked_by_the_index_at_once_the_next_time(
    mine: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest.objects.get(state="active")
    vector = KnowsMeanings().meaning("boat")
    compared: list[Vectors] = []
    lists = candidates.by_vectors

    def told(scope: Scope, manifest: Manifest | None, vectors: Vectors) -> str:
        compared.append(vectors)
        return lists(scope, manifest, vectors)

    monkeypatch.setattr(candidates, "by_vectors", told)

    def ways() -> list[Vectors]:
        compared.clear()
        ranked = ranking.by_both("boat", Scope(mine.owner_id), manifest, vector, limit=11)
        assert len(ranked.found) == 11
        return list(compared)

    assert ways() == ways() == [Vectors.FEW]
    monkeypatch.setattr(bounds, "EXACT_MAX_VECTORS", MINE - 1)
    monkeypatch.setattr(bounds, "CANDIDATES", MINE)
    assert ways() == [Vectors.FEW, Vectors.BY_INDEX]
    assert ways() == ways() == [Vectors.BY_INDEX]
    # the index does not give enough: it is found out anew whether there are as many
    monkeypatch.setattr(bounds, "CANDIDATES", MINE + 1)
    assert ways() == [Vectors.BY_INDEX, Vectors.EACH]
    monkeypatch.setattr(bounds, "EXACT_MAX_VECTORS", MINE)
    assert ways() == [Vectors.FEW]


def test_words_are_made_by_the_database_of_complete_messages_by_the_plain_dictionary() -> None:
    """behaviour V5"""
    conversation = ConversationFactory.create()
    asked = MessageFactory.create(conversation=conversation, text="The boats, running!")
    told = MessageFactory.create(conversation=conversation, answered=True, text="Die Boote.")
    MessageFactory.create(conversation=conversation, assistant=True)
    MessageFactory.create(
        conversation=conversation, role="assistant", state="failed", text="Cut boats"
    )
    MessageFactory.create(conversation=conversation, text=" ")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT message_id, tsvector_to_array(words) FROM semantic_messagewords ORDER BY 1"
        )
        found = {pk: set(words) for pk, words in cursor.fetchall()}
        cursor.execute(
            "SELECT indexdef FROM pg_indexes WHERE indexname = 'semantic_messagewords_words'"
        )
        ((index,),) = cursor.fetchall()
    own = f"person {conversation.owner_id}"
    assert found == {
        asked.pk: {"the", "boats", "running", own},
        told.pk: {"die", "boote", own},
    }
    assert "USING gin (words)" in index


def test_what_is_asked_is_the_same_text_for_everybody_and_another_for_each_kind_of_scope() -> (
    None
):
    """Sessions keep it, and so does the process."""
    now = timezone.now()

    def scopes(person: int) -> list[Scope]:
        here, before = 10 * person, 100 * person
        return [
            Scope(person),
            Scope(person, here),
            Scope(person, None, before),
            Scope(person, None, None, now),
            Scope(person, here, before),
            Scope(person, here, None, now),
        ]

    one, another = (
        [ranking.asked("boat", scope, limit=11) for scope in scopes(person)]
        for person in (3_001, 7_001)
    )
    assert [text for text, _ in one] == [text for text, _ in another]
    assert len({text for text, _ in one}) == len(one)
    for (text, values), scope in zip(one, scopes(3_001), strict=True):
        assert "3001" not in text
        assert values.items() >= scope.values.items()


def test_a_statement_that_the_session_keeps_is_planned_for_each_person_anew(
    mine: Conversation,
) -> None:
    """The server goes over to one plan for all after five, where that seems no dearer."""
    manifest = Manifest.objects.get(state="active")
    vector = KnowsMeanings().meaning("boat")
    theirs = MessageWords.objects.exclude(person=mine.owner_id)[0].person_id
    for person in (theirs, mine.owner_id):
        for _ in range(8):
            ranking.by_both("boat", Scope(person), manifest, vector, limit=11)
            ranking.by_words("boat", Scope(person), limit=11)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements "
            "WHERE statement LIKE '%semantic_messagewords%'"
        )
        plans = cursor.fetchall()
    assert plans
    assert all(generic == 0 and custom >= 8 for generic, custom in plans), plans
