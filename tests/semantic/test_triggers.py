"""What messages do for search by themselves, whoever writes to them: raw SQL can forget
nothing."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from recovery.blanks import BLANKS
from semantic import transitions
from semantic.models import Embedding, Manifest, MessageWords, SemanticJob, SemanticReceipt
from tests import factories as make
from turns import transitions as turn_transitions
from turns.digests import digest
from turns.models import Conversation, Message

pytestmark = pytest.mark.django_db

SAY: Final = """
    INSERT INTO turns_message (conversation_id, role, state, text, digest, finished_at)
    SELECT %s, 'user', 'complete', 'Words number ' || n, 'digest ' || n, now()
    FROM generate_series(1, %s) n
"""


def sql(statement: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def jobs(message: Message) -> list[tuple[str, str]]:
    """Return state and digest of each job of the message, the oldest first."""
    return list(
        SemanticJob.objects.filter(message=message)
        .order_by("pk")
        .values_list("state", "digest")
    )


def words_of(message: Message) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT words::text FROM semantic_messagewords WHERE message_id = %s", [message.pk]
        )
        row = cursor.fetchone()
    return None if row is None else row[0]


@pytest.fixture
def manifest() -> Manifest:
    return make.ManifestFactory.create(active=True)


def derived(**message: Any) -> Message:
    """Return a message with its vector, its words and its completed job."""
    said = make.MessageFactory.create(**message)
    manifest = Manifest.objects.get(state="active")
    make.SemanticJobFactory.create(completed=True, manifest=manifest, message=said)
    return said


def nothing_is_left_of(*message_ids: int) -> None:
    for model in (SemanticJob, Embedding, MessageWords):
        assert not model.objects.filter(message_id__in=message_ids).exists(), model


def test_a_message_is_enqueued_for_the_manifest_that_answers_and_the_one_being_built(
    manifest: Manifest,
) -> None:
    make.ManifestFactory.create(retired=True)
    following = make.ManifestFactory.create()

    message = make.MessageFactory.create()

    mine = SemanticJob.objects.filter(message=message).order_by("manifest_id")
    assert [job.manifest_id for job in mine] == [manifest.pk, following.pk]
    assert {(job.state, job.digest, job.person_id) for job in mine} == {
        ("queued", message.digest, message.conversation.owner_id)
    }


def test_five_messages_in_one_statement_give_five_jobs(manifest: Manifest) -> None:
    """behaviour U5"""
    conversation = make.ConversationFactory.create()

    sql(SAY, conversation.pk, 5)

    assert SemanticJob.objects.filter(conversation=conversation, state="queued").count() == 5
    assert MessageWords.objects.filter(conversation=conversation).count() == 5


@pytest.mark.parametrize("state", ["complete", "failed", "cancelled", "interrupted"])
def test_an_answer_is_enqueued_when_it_has_ended_however_it_did(
    manifest: Manifest, state: str
) -> None:
    """behaviour V5: full text holds complete messages alone"""
    answer = make.MessageFactory.create(assistant=True)
    assert jobs(answer) == []

    sql(
        "UPDATE turns_message SET state = %s, text = 'So far', digest = 'd', "
        "finished_at = now() WHERE id = %s",
        state,
        answer.pk,
    )

    assert jobs(answer) == [("queued", "d")]
    assert (words_of(answer) is not None) == (state == "complete")


def test_an_answer_that_still_streams_is_not_enqueued(manifest: Manifest) -> None:
    answer = make.MessageFactory.create(assistant=True)

    sql("UPDATE turns_message SET text = 'Not yet' WHERE id = %s", answer.pk)

    nothing_is_left_of(answer.pk)


@pytest.mark.parametrize("text", ["", " ", "\n\t ", BLANKS, *BLANKS])
def test_a_blank_message_is_not_enqueued(manifest: Manifest, text: str) -> None:
    message = make.MessageFactory.create(text=text)
    nothing_is_left_of(message.pk)


def test_the_same_words_saved_again_enqueue_nothing(manifest: Manifest) -> None:
    """behaviour U5"""
    message = derived()
    before = Embedding.objects.get(message=message).pk

    message.save()
    sql("UPDATE turns_message SET text = text, digest = digest WHERE id = %s", message.pk)
    sql("UPDATE turns_message SET edited_at = now() WHERE id = %s", message.pk)

    assert jobs(message) == [("completed", message.digest)]
    assert Embedding.objects.get(message=message).pk == before


def test_other_words_take_the_vector_away_and_enqueue_anew(manifest: Manifest) -> None:
    """failure H70: no path goes round it"""
    message = derived(text="An apple.")

    sql(
        "UPDATE turns_message SET text = 'A pear.', digest = %s WHERE id = %s",
        digest("A pear."),
        message.pk,
    )

    assert jobs(message) == [("invalidated", message.digest), ("queued", digest("A pear."))]
    assert not Embedding.objects.exists()
    assert "pear" in (words_of(message) or "")
    assert "apple" not in (words_of(message) or "")


def test_other_words_under_the_old_digest_are_noticed_too(manifest: Manifest) -> None:
    message = derived()

    sql("UPDATE turns_message SET text = 'Something else' WHERE id = %s", message.pk)

    assert jobs(message) == [("invalidated", message.digest), ("queued", message.digest)]
    assert not Embedding.objects.exists()


def test_words_taken_back_altogether_leave_nothing_to_be_found(manifest: Manifest) -> None:
    message = derived()

    sql("UPDATE turns_message SET text = ' ', digest = 'd' WHERE id = %s", message.pk)

    assert jobs(message) == [("invalidated", message.digest)]
    assert not Embedding.objects.exists()
    assert words_of(message) is None


@pytest.mark.parametrize("state", ["queued", "running", "failed"])
def test_an_edit_invalidates_what_is_open_and_leaves_what_failed(
    manifest: Manifest, state: str
) -> None:
    job = make.SemanticJobFactory.create(
        manifest=manifest, **({} if state == "queued" else {state: True})
    )

    sql("UPDATE turns_message SET text = 'x', digest = 'x' WHERE id = %s", job.message_id)

    first, second = SemanticJob.objects.filter(message_id=job.message_id).order_by("pk")
    assert (first.state, first.retry_at) == (
        "failed" if state == "failed" else "invalidated",
        None,
    )
    assert (second.state, second.digest, second.round) == ("queued", "x", 1)


def test_many_messages_are_edited_in_one_statement(manifest: Manifest) -> None:
    conversation = make.ConversationFactory.create()
    messages = [derived(conversation=conversation, text=f"Text {n}") for n in range(5)]
    kept = derived(text="Kept")

    sql(
        "UPDATE turns_message SET text = text || '!', digest = md5(digest) "
        "WHERE conversation_id = %s",
        conversation.pk,
    )

    for message in messages:
        assert [state for state, _ in jobs(message)] == ["invalidated", "queued"]
    assert jobs(kept) == [("completed", kept.digest)]
    assert Embedding.objects.get().message_id == kept.pk


def test_the_words_are_those_of_the_plain_dictionary_and_the_persons_own(
    manifest: Manifest,
) -> None:
    """behaviour V5"""
    message = make.MessageFactory.create(text="The running boats run; RUNNING!")
    person = message.conversation.owner_id

    assert words_of(message) == f"'boats' 'person {person}' 'run' 'running' 'the'"


def test_no_words_anybody_says_are_those_of_a_person(manifest: Manifest) -> None:
    other = make.UserFactory.create()
    message = make.MessageFactory.create(text=f"person {other.pk} 'person {other.pk}'")

    assert f"'person {other.pk}'" not in (words_of(message) or "")


def test_a_long_answer_of_odd_words_is_enqueued(manifest: Manifest) -> None:
    text = " ".join(f"word{n}-http://host{n}.example/a/b?c=d" for n in range(1_500))
    answer = make.MessageFactory.create(answered=True, text=(text + "x" * 65_536)[:65_000])

    assert jobs(answer) == [("queued", answer.digest)]
    assert words_of(answer) is not None


def test_a_removed_message_takes_its_vector_its_jobs_and_its_words_along(
    manifest: Manifest,
) -> None:
    """failure H69"""
    gone, kept = derived(), derived()

    sql("DELETE FROM turns_message WHERE id = %s", gone.pk)

    connection.check_constraints()
    nothing_is_left_of(gone.pk)
    assert jobs(kept) == [("completed", kept.digest)]


@pytest.mark.parametrize("running", [False, True])
def test_a_conversation_its_owner_removes_takes_all_along(
    manifest: Manifest, *, running: bool
) -> None:
    conversation = make.ConversationFactory.create()
    messages = [derived(conversation=conversation) for _ in range(3)]
    messages.append(make.MessageFactory.create(conversation=conversation))
    if running:
        assert transitions.claim_jobs(manifest.pk, limit=9)

    turn_transitions.delete_conversation(conversation.owner_id, conversation.pk)

    connection.check_constraints()
    nothing_is_left_of(*[message.pk for message in messages])


@pytest.mark.parametrize("by", ["django", "sql"])
def test_an_erased_person_takes_all_along(manifest: Manifest, by: str) -> None:
    """failure H84"""
    conversation = make.ConversationFactory.create()
    messages = [derived(conversation=conversation) for _ in range(2)]
    stranger = derived()

    if by == "django":
        get_user_model().objects.get(pk=conversation.owner_id).delete()
    else:
        sql("DELETE FROM turns_message WHERE conversation_id = %s", conversation.pk)
        sql("DELETE FROM turns_conversation WHERE owner_id = %s", conversation.owner_id)
        sql("DELETE FROM auth_user WHERE id = %s", conversation.owner_id)

    connection.check_constraints()
    nothing_is_left_of(*[message.pk for message in messages])
    assert not SemanticJob.objects.filter(person_id=conversation.owner_id).exists()
    assert jobs(stranger) == [("completed", stranger.digest)]


def test_a_conversation_django_removes_takes_all_along(manifest: Manifest) -> None:
    message = derived()

    Conversation.objects.filter(pk=message.conversation_id).delete()

    connection.check_constraints()
    nothing_is_left_of(message.pk)


def test_a_message_under_its_old_id_begins_anew(manifest: Manifest) -> None:
    message = derived()

    sql("DELETE FROM turns_message WHERE id = %s", message.pk)
    again = make.MessageFactory.create(pk=message.pk, conversation=message.conversation)

    assert jobs(again) == [("queued", again.digest)]


def test_receipts_outlive_their_message_and_can_be_removed_then(manifest: Manifest) -> None:
    message, kept = derived(), derived()

    sql("DELETE FROM turns_message WHERE id = %s", message.pk)
    assert SemanticReceipt.objects.filter(message_id=message.pk).count() == 1
    sql("DELETE FROM semantic_semanticreceipt WHERE message_id = %s", message.pk)

    assert SemanticReceipt.objects.get().message_id == kept.pk
