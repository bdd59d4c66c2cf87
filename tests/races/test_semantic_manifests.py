"""Manifests that begin and give way, and looks for what was missed, against those who write.

Whoever begins a manifest waits for who is writing, so that nothing is said between; whoever
swaps waits for the last results of the one before.
"""

from __future__ import annotations

from typing import Final

import pgtrigger
import psycopg
import pytest
from django.db import connection

from semantic import transitions
from semantic.embedders.embedder import Identity
from semantic.models import Embedding, Manifest, SemanticJob
from semantic.transitions import Claim
from tests import factories as make
from tests.races.test_semantic import EDIT, claim, manifest, message, persist, under_way
from tests.support.rivals import Rival
from turns.models import Message

__all__ = ["claim", "manifest", "message"]

pytestmark = pytest.mark.django_db(transaction=True)

OTHER: Final = Identity("test", "better", "1", 8)
BEGINNING: Final = "LOCK TABLE turns_message IN SHARE ROW EXCLUSIVE MODE"
RESULT: Final = """
    WITH done AS (
        UPDATE semantic_semanticjob SET state = 'completed', write_mark = write_mark + 1,
            finished_at = statement_timestamp() WHERE id = %s RETURNING *
    )
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT manifest_id, message_id, conversation_id, person_id, id, attempts, digest,
        array_fill(1::real, ARRAY[8])::vector FROM done
"""
# as a look does
ENQUEUE: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
        digest, state, error_code, round, attempts, write_mark)
    SELECT p.id, m.id, m.conversation_id, c.owner_id, m.digest, 'queued', '', 1, 0, 0
    FROM turns_message m JOIN turns_conversation c ON c.id = m.conversation_id,
        semantic_manifest p WHERE m.id = %s
"""


def lose_every_job() -> None:
    """As if messages had been written past their triggers."""
    with pgtrigger.ignore("semantic.SemanticJob:is_kept"):
        SemanticJob.objects.all().delete()


def taking_over(manifest: Manifest) -> Manifest:
    """A manifest that is complete but for taking over."""
    following = transitions.begin(OTHER)
    transitions.backfill(following.pk)
    claims = transitions.claim_jobs(following.pk, limit=9)
    assert persist(*claims)().completed
    return following


def test_a_result_of_a_manifest_that_is_giving_way_is_refused(
    message: Message, claim: Claim, manifest: Manifest, database_url: str
) -> None:
    """failure H71: the new manifest goes first"""
    following = taking_over(manifest)
    with psycopg.connect(database_url) as swap:
        swap.execute(
            "UPDATE semantic_manifest SET state = 'retired', finished_at = now() WHERE id = %s",
            [manifest.pk],
        )
        late = Rival(persist(claim)).until_it_waits()
        assert late.waits_for(swap.info.backend_pid)
        swap.commit()
    assert late.result().invalidated == {claim.job_id}
    assert set(Embedding.objects.values_list("manifest_id", flat=True)) == {following.pk}


def test_a_manifest_waits_for_the_last_result_of_the_one_before(
    message: Message, claim: Claim, manifest: Manifest, database_url: str
) -> None:
    """failure H71: the result goes first"""
    following = taking_over(manifest)
    with under_way(database_url, RESULT, claim.job_id) as last:
        swap = Rival(lambda: transitions.activate_when_complete(following.pk)).until_it_waits()
        assert swap.waits_for(last.info.backend_pid)
        last.commit()
    assert swap.result()
    assert Embedding.objects.filter(manifest_id=manifest.pk).count() == 1
    assert transitions.reconcile().cleared == 1
    assert set(Embedding.objects.values_list("manifest_id", flat=True)) == {following.pk}


def test_what_is_said_while_a_manifest_is_begun_is_not_forgotten(
    manifest: Manifest, database_url: str
) -> None:
    """The words were written before, and are committed after: the beginning waits for them."""
    conversation = make.ConversationFactory.create()
    with under_way(
        database_url,
        "INSERT INTO turns_message (conversation_id, role, state, text, digest, finished_at) "
        "VALUES (%s, 'user', 'complete', 'Just now', 'd', now())",
        conversation.pk,
    ) as writer:
        beginning = Rival(lambda: transitions.begin(OTHER)).until_it_waits()
        assert beginning.waits_for(writer.info.backend_pid)
        writer.commit()
    following = beginning.result()
    assert transitions.backfill(following.pk) == 1


def test_what_is_said_after_a_manifest_was_begun_is_enqueued_for_it(
    manifest: Manifest, database_url: str
) -> None:
    with under_way(database_url, BEGINNING) as beginning:
        beginning.execute(
            "INSERT INTO semantic_manifest (generation, state, provider, model, version, "
            "dimensions, query_prefix, passage_prefix, digest, scanned_to) "
            "VALUES (9, 'building', 'p', 'm', '', 8, '', '', 'd', 0)"
        )
        conversation = make.ConversationFactory.create()
        said = Rival(
            lambda: make.MessageFactory.create(conversation=conversation)
        ).until_it_waits()
        beginning.commit()
    message = said.result()
    jobs = SemanticJob.objects.filter(message=message).values_list(
        "manifest__generation", flat=True
    )
    assert sorted(jobs) == [manifest.generation, 9]


def test_two_processes_that_start_begin_one_manifest(database_url: str) -> None:
    with under_way(
        database_url, "LOCK TABLE turns_message IN SHARE ROW EXCLUSIVE MODE"
    ) as held:
        both = [Rival(lambda: transitions.ensure(OTHER)).until_it_waits() for _ in range(2)]
        held.rollback()
    assert both[0].result().pk == both[1].result().pk
    assert Manifest.objects.count() == 1


def test_two_looks_at_once_enqueue_each_message_once(
    message: Message, manifest: Manifest, database_url: str
) -> None:
    lose_every_job()
    with under_way(database_url, "LOCK TABLE semantic_semanticjob IN SHARE MODE") as held:
        both = [Rival(transitions.reconcile).until_it_waits() for _ in range(2)]
        held.rollback()
    assert sum(look.result().enqueued for look in both) == 1
    assert SemanticJob.objects.count() == 1


def test_a_look_that_began_before_a_job_was_made_does_not_enqueue_what_is_derived_by_then(
    manifest: Manifest, database_url: str
) -> None:
    """Its statement sees no job; and one that has completed stands in no other's way."""
    first, second = (make.MessageFactory.create(text=f"{n}") for n in range(2))
    lose_every_job()
    with under_way(database_url, ENQUEUE, first.pk) as other:
        look = Rival(transitions.reconcile).until_it_waits()
        assert look.waits_for(other.info.backend_pid)
        with connection.cursor() as cursor:
            cursor.execute(ENQUEUE, [second.pk])
        result = Rival(persist(*transitions.claim_jobs(manifest.pk, limit=9))).until_it_waits()
        assert result.waits_for(look.pid)
        other.rollback()

    assert look.result().enqueued == 1
    assert len(result.result().completed) == 1
    assert SemanticJob.objects.get(message=second).state == "completed"


def test_a_look_leaves_a_message_that_is_being_changed_to_who_changes_it(
    message: Message, manifest: Manifest, database_url: str
) -> None:
    lose_every_job()
    with under_way(database_url, EDIT, message.pk) as change:
        look = Rival(transitions.reconcile).until_it_waits()
        change.commit()
    assert look.result().enqueued == 0
    assert SemanticJob.objects.get().digest == "other"


def test_a_start_with_what_answered_until_just_now_begins_it_anew(
    manifest: Manifest, database_url: str
) -> None:
    """It waits for the swap under way, and does not take what gives way for what answers."""
    following = transitions.begin(OTHER)
    identity = Identity(
        manifest.provider, manifest.model, manifest.version, manifest.dimensions
    )
    with psycopg.connect(database_url) as swap:
        swap.execute(
            "UPDATE semantic_manifest SET state = 'retired', finished_at = now() WHERE id = %s",
            [manifest.pk],
        )
        swap.execute(
            "UPDATE semantic_manifest SET state = 'active', activated_at = now(), "
            "covered_at = now() WHERE id = %s",
            [following.pk],
        )
        start = Rival(lambda: transitions.ensure(identity)).until_it_waits()
        swap.commit()
    assert (start.result().state, start.result().generation) == ("building", 3)
    following.refresh_from_db()
    assert following.state == "active"
