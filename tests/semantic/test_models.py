"""Each rule of what is derived, broken by raw SQL: the database itself refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from recovery.constraints import violated_constraint
from semantic import transitions
from semantic.models import Embedding, SemanticJob, SemanticReceipt
from tests import factories as make
from tests.support.rules import declared_rules, refusal_of, silence_other_triggers

pytestmark = pytest.mark.django_db


def building() -> Model:
    return make.ManifestFactory.create()


def active() -> Model:
    return make.ManifestFactory.create(active=True)


def retired() -> Model:
    return make.ManifestFactory.create(retired=True)


def building_beside_an_active_one() -> Model:
    make.ManifestFactory.create(active=True)
    return make.ManifestFactory.create()


def retired_beside_a_building_one() -> Model:
    last = make.ManifestFactory.create(retired=True)
    make.ManifestFactory.create()
    return last


def queued() -> SemanticJob:
    return make.SemanticJobFactory.create()


def running() -> SemanticJob:
    return make.SemanticJobFactory.create(running=True)


def expired() -> SemanticJob:
    return make.expired(running())


def completed() -> SemanticJob:
    return make.SemanticJobFactory.create(completed=True)


def failed() -> SemanticJob:
    return make.SemanticJobFactory.create(failed=True)


def given_up() -> SemanticJob:
    return make.SemanticJobFactory.create(failed=True, error_code="text_not_embeddable")


def invalidated() -> SemanticJob:
    return make.SemanticJobFactory.create(invalidated=True)


def ended_beside_an_open_one() -> SemanticJob:
    """Failed once; another was enqueued for the next round."""
    job = failed()
    make.let_retries_come_due()
    assert transitions.reconcile().retried == 1
    job.refresh_from_db()
    return job


def of_a_streaming_message() -> Model:
    make.ManifestFactory.create()
    return make.MessageFactory.create(assistant=True)


def said_beside_a_stranger() -> Model:
    """A message without a job; another person has a conversation too."""
    make.ConversationFactory.create()
    message = make.MessageFactory.create()
    make.ManifestFactory.create()
    return message


def vector() -> Model:
    return make.EmbeddingFactory.create()


def words() -> Model:
    return make.MessageWordsFactory.create()


def message_without_words() -> Model:
    message = make.MessageFactory.create()
    transitions.forget(message.pk)
    return message


def streaming() -> Model:
    return make.MessageFactory.create(assistant=True)


def receipt() -> Model:
    return make.SemanticReceiptFactory.create()


def failed_receipt() -> Model:
    return make.SemanticReceiptFactory.create(failed=True)


def second_of_two_receipts() -> Model:
    make.SemanticReceiptFactory.create(job_id=1)
    return make.SemanticReceiptFactory.create(job_id=2)


def receipt_of_what_is_there() -> Model:
    return SemanticReceipt.objects.get(job_id=completed().pk)


END: Final = "finished_at = statement_timestamp()"
LEASE: Final = "lease_expires_at = statement_timestamp() + interval '20 s'"
CLAIM: Final = (
    f"state = 'running', attempts = attempts + 1, claim_token = gen_random_uuid(), {LEASE}, "
    "write_mark = (attempts + 1)::bigint << 32"
)
ENQUEUE: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
        digest, state, error_code, round, attempts, write_mark, claim_token)
    SELECT {manifest}, m.id, {conversation}, {person}, {digest}, {state}, '', 1, 0, 0, {token}
    FROM turns_message m JOIN turns_conversation c ON c.id = m.conversation_id
    WHERE m.id = {{pk}}
"""
OWN: Final = {
    "manifest": "(SELECT max(id) FROM semantic_manifest)",
    "conversation": "m.conversation_id",
    "person": "c.owner_id",
    "digest": "m.digest",
    "state": "'queued'",
    "token": "NULL::uuid",
}
ANOTHER_CONVERSATION: Final = "(SELECT min(id) FROM turns_conversation)"
ANOTHER_PERSON: Final = "(SELECT min(owner_id) FROM turns_conversation)"
OPEN_AGAIN: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
        digest, state, error_code, round, attempts, write_mark)
    SELECT manifest_id, message_id, conversation_id, person_id, digest, 'queued', '', 1, 0, 0
    FROM semantic_semanticjob WHERE id = {pk}
"""
EMBED: Final = """
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT manifest_id, message_id, conversation_id, person_id, id, attempts, digest,
        array_fill(1::real, ARRAY[8])::vector FROM semantic_semanticjob WHERE id = {pk}
"""
COMPLETE_AND_EMBED: Final = """
    WITH done AS (
        UPDATE semantic_semanticjob SET state = 'completed', write_mark = write_mark + 1,
            finished_at = statement_timestamp() WHERE id = {{pk}} RETURNING *
    )
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT {manifest}, message_id, {conversation}, {person}, id, {attempt}, {digest}, {vector}
    FROM done
"""
EMBEDDED: Final = {
    "manifest": "manifest_id",
    "conversation": "conversation_id",
    "person": "person_id",
    "attempt": "attempts",
    "digest": "digest",
    "vector": "array_fill(1::real, ARRAY[8])::vector",
}
WORDS: Final = """
    INSERT INTO semantic_messagewords (message_id, conversation_id, person_id, words)
    SELECT m.id, {conversation}, {person}, ''
    FROM turns_message m JOIN turns_conversation c ON c.id = m.conversation_id
    WHERE m.id = {{pk}}
"""
BEGIN_ACTIVE: Final = """
    INSERT INTO semantic_manifest (generation, state, provider, model, version, dimensions,
        query_prefix, passage_prefix, digest, scanned_to, covered_at, activated_at)
    VALUES (99, 'active', '', '', '', 8, '', '', '', 0, now(), now())
"""


def enqueue(**changes: str) -> str:
    return ENQUEUE.format(**{**OWN, **changes})


def embed(**changes: str) -> str:
    return COMPLETE_AND_EMBED.format(**{**EMBEDDED, **changes})


# table, rule, a row, and what breaks the rule: assignments, or a whole statement
BREACHES: Final[list[tuple[str, str, Callable[[], Model], str]]] = [
    ("manifest", "state_known", building, "state = 'odd'"),
    ("manifest", "ended_with_its_time", building, "state = 'retired'"),
    ("manifest", "ended_with_its_time", active, END),
    ("manifest", "active_since", building, "state = 'active', covered_at = now()"),
    ("manifest", "active_since", building, "state = 'active', activated_at = now()"),
    ("manifest", "dimensions_bounded", building, "dimensions = 2001"),
    ("manifest", "dimensions_bounded", building, "dimensions = 0"),
    (
        "manifest",
        "one_active",
        building_beside_an_active_one,
        "state = 'active', covered_at = now(), activated_at = now()",
    ),
    (
        "manifest",
        "one_building",
        retired_beside_a_building_one,
        "state = 'building', finished_at = NULL",
    ),
    ("manifest", "generation", building_beside_an_active_one, "generation = 1"),
    ("manifest", "moves", active, "state = 'building'"),
    ("manifest", "moves", retired, "state = 'active', finished_at = NULL, "
     "activated_at = now(), covered_at = now()"),
    ("manifest", "identity_is_fixed", building, "id = -id"),
    ("manifest", "identity_is_fixed", active, "dimensions = 16"),
    ("manifest", "identity_is_fixed", building, "passage_prefix = 'passage: '"),
    ("manifest", "identity_is_fixed", building, "digest = 'another'"),
    ("manifest", "begins_building", retired, BEGIN_ACTIVE),
    ("manifest", "is_kept", retired, "DELETE FROM semantic_manifest WHERE id = {pk}"),
    ("semanticjob", "state_known", queued, "state = 'odd'"),
    ("semanticjob", "ended_with_its_time", running, "state = 'failed', error_code = 'x'"),
    ("semanticjob", "ended_with_its_time", running, END),
    ("semanticjob", "error_code_is_honest", running, f"state = 'failed', {END}"),
    ("semanticjob", "error_code_is_honest", completed, "error_code = 'internal_error'"),
    ("semanticjob", "runs_on_a_lease", queued, "state = 'running'"),
    ("semanticjob", "runs_on_a_lease", running, "lease_expires_at = NULL"),
    ("semanticjob", "runs_on_a_lease", queued, LEASE),
    ("semanticjob", "retries_bounded", running, "retry_at = now()"),
    ("semanticjob", "retries_bounded", failed, "round = 4"),
    ("semanticjob", "attempts_bounded", running, "attempts = 6, write_mark = 6::bigint << 32"),
    ("semanticjob", "attempts_bounded", queued, "round = 5"),
    ("semanticjob", "attempts_bounded", queued, "round = 0"),
    ("semanticjob", "fence_presented", running, "write_mark = 1"),
    ("semanticjob", "one_open", ended_beside_an_open_one, OPEN_AGAIN),
    ("semanticjob", "fence", running, "claim_token = claim_token, write_mark = write_mark"),
    ("semanticjob", "moves", queued, f"state = 'completed', {END}"),
    ("semanticjob", "moves", queued, f"state = 'failed', error_code = 'internal_error', {END}"),
    ("semanticjob", "moves", failed, "state = 'queued', finished_at = NULL, retry_at = NULL, "
     "error_code = '', lease_expires_at = NULL"),
    ("semanticjob", "moves", completed, "state = 'failed', error_code = 'internal_error'"),
    ("semanticjob", "end_is_final", completed, "finished_at = now() + interval '1 s'"),
    ("semanticjob", "end_is_final", failed, "retry_at = now()"),
    ("semanticjob", "end_is_final", failed, "retry_at = NULL, error_code = 'internal_error'"),
    ("semanticjob", "end_is_final", given_up, "retry_at = now()"),
    ("semanticjob", "end_is_final", invalidated, "state = 'invalidated'"),
    ("semanticjob", "identity_is_fixed", running, "id = -id"),
    ("semanticjob", "identity_is_fixed", running, "digest = 'another'"),
    ("semanticjob", "identity_is_fixed", queued, "round = 2"),
    ("semanticjob", "identity_is_fixed", queued, "conversation_id = conversation_id + 1"),
    ("semanticjob", "identity_is_fixed", completed, "manifest_id = manifest_id + 1"),
    ("semanticjob", "claim_is_fenced", running, CLAIM),
    ("semanticjob", "claim_is_fenced", expired, CLAIM.replace("gen_random_uuid()", "NULL")),
    ("semanticjob", "claim_is_fenced", expired, CLAIM.replace("gen_random_uuid()",
                                                              "claim_token")),
    ("semanticjob", "claim_is_fenced", queued, CLAIM.replace("20 s", "31 s")),
    ("semanticjob", "claim_is_fenced", queued, CLAIM.replace("20 s", "-1 s")),
    ("semanticjob", "claim_is_fenced", queued, CLAIM.replace("attempts + 1", "attempts + 2")),
    ("semanticjob", "claim_is_fenced", running, "claim_token = gen_random_uuid()"),
    ("semanticjob", "claim_is_fenced", running, "attempts = 0, write_mark = 7"),
    ("semanticjob", "lease_belongs_to_its_claim", running, LEASE),
    ("semanticjob", "completes_with_its_vector", running, f"state = 'completed', {END}"),
    ("semanticjob", "begins_queued", said_beside_a_stranger, enqueue(
        token="gen_random_uuid()")),
    ("semanticjob", "begins_queued", said_beside_a_stranger, enqueue(
        state="'running'").replace("write_mark, claim_token)",
                                   "write_mark, claim_token, lease_expires_at)").replace(
        "NULL::uuid", "NULL::uuid, now()")),
    ("semanticjob", "is_of_its_message", of_a_streaming_message, enqueue()),
    ("semanticjob", "is_of_its_message", said_beside_a_stranger, enqueue(digest="'another'")),
    ("semanticjob", "is_of_its_message", said_beside_a_stranger, enqueue(manifest="0")),
    ("semanticjob", "is_of_its_message", said_beside_a_stranger, enqueue(
        person=ANOTHER_PERSON)),
    ("semanticjob", "is_of_its_message", said_beside_a_stranger, enqueue(
        conversation=ANOTHER_CONVERSATION, person=ANOTHER_PERSON)),
    ("semanticjob", "is_kept", queued, "DELETE FROM semantic_semanticjob WHERE id = {pk}"),
    ("semanticjob", "is_kept", completed, "DELETE FROM semantic_semanticjob WHERE id = {pk}"),
    ("embedding", "is_of_its_message", running, EMBED),
    ("embedding", "is_of_its_message", completed,
     "DELETE FROM semantic_embedding; " + EMBED.lstrip()),
    ("embedding", "is_of_its_message", running, embed(digest="'another'")),
    ("embedding", "is_of_its_message", running, embed(manifest="manifest_id + 1")),
    ("embedding", "is_of_its_message", running, embed(conversation="conversation_id + 1")),
    ("embedding", "is_of_its_message", running, embed(person="person_id + 1")),
    ("embedding", "is_of_its_message", running, embed(attempt="attempts - 1")),
    ("embedding", "is_of_its_message", running, embed(
        vector="array_fill(1::real, ARRAY[16])::vector")),
    ("embedding", "one_per_message", completed, EMBED),
    ("embedding", "never_changes", vector, "conversation_id = conversation_id + 1"),
    ("embedding", "never_changes", vector, "vector = array_fill(1::real, ARRAY[8])::vector"),
    ("messagewords", "is_of_its_message", streaming, WORDS.format(
        conversation="m.conversation_id", person="c.owner_id")),
    ("messagewords", "is_of_its_message", message_without_words, WORDS.format(
        conversation="m.conversation_id", person="c.owner_id + 1")),
    ("messagewords", "is_of_its_message", message_without_words, WORDS.format(
        conversation="m.conversation_id + 1", person="c.owner_id")),
    ("messagewords", "never_changes", words, "person_id = person_id + 1"),
    ("messagewords", "never_changes", words, "words = ''"),
    ("semanticreceipt", "error_code_is_honest", receipt, "outcome = 'failed'"),
    ("semanticreceipt", "error_code_is_honest", failed_receipt, "outcome = 'invalidated'"),
    ("semanticreceipt", "error_code_is_honest", receipt, "outcome = 'odd'"),
    ("semanticreceipt", "one_per_outcome", second_of_two_receipts, "job_id = 1"),
    ("semanticreceipt", "append_only", receipt, "attempt = 2"),
    ("semanticreceipt", "is_kept", receipt_of_what_is_there,
     "DELETE FROM semantic_semanticreceipt WHERE id = {pk}"),
]  # fmt: skip
KEYS: Final = {"messagewords": "message_id"}


@pytest.mark.parametrize(
    ("table", "rule", "row", "breach"), BREACHES, ids=[f"{b[0]}_{b[1]}" for b in BREACHES]
)
def test_the_database_refuses(
    table: str, rule: str, row: Callable[[], Model], breach: str
) -> None:
    """behaviours U10, U11"""
    pk = row().pk
    if breach.lstrip().startswith(("INSERT", "DELETE", "WITH")):
        sql = breach.format(pk=pk)
    else:
        moved = table == "semanticjob" and "write_mark" not in breach
        mark = "write_mark = write_mark + 1, " if moved else ""
        where = f"{KEYS.get(table, 'id')} = {pk}"
        sql = f"UPDATE semantic_{table} SET {mark}{breach} WHERE {where}"
    silence_other_triggers(f"semantic_{table}", rule)
    if table == "embedding":
        silence_other_triggers("semantic_semanticjob", "")

    # a unique column's index is named by Django, after its column
    assert refusal_of(sql).startswith(f"semantic_{table}_{rule}")


DERIVED: Final[dict[str, Callable[[], Any]]] = {
    "semanticjob": queued,
    "embedding": vector,
    "messagewords": words,
}


@pytest.mark.parametrize("table", DERIVED)
def test_what_is_derived_is_of_a_message_in_its_conversation(table: str) -> None:
    """behaviours U10, U11: by key as well, whatever becomes of the triggers"""
    row = DERIVED[table]()
    silence_other_triggers(f"semantic_{table}", "")
    move = (
        f"UPDATE semantic_{table} SET conversation_id = conversation_id + 1 "
        f"WHERE {KEYS.get(table, 'id')} = {row.pk}; SET CONSTRAINTS ALL IMMEDIATE"
    )

    assert refusal_of(move) == f"semantic_{table}_message_in_conversation"


def test_a_full_save_of_a_stale_instance_is_refused() -> None:
    """It brings an old attempt with a mark that fits it."""
    stale = queued()
    make.claim_of(stale)

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        stale.save()

    assert violated_constraint(refused.value).startswith("semantic_semanticjob_")


def test_no_vector_is_kept_when_its_job_completes_by_a_statement_of_its_own() -> None:
    job = running()

    with pytest.raises(IntegrityError), transaction.atomic():
        connection.cursor().execute(EMBED.format(pk=job.pk))

    assert not Embedding.objects.exists()


def test_every_rule_of_the_tables_is_broken_here() -> None:
    broken = {f"semantic_{table}_{rule}" for table, rule, _, _ in BREACHES}

    assert declared_rules("semantic") - broken == set()
