"""Manifests are begun, filled, and take over; what is forgotten is gone."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from recovery.errors import ErrorCode
from semantic import bounds, transitions
from semantic.models import Embedding, Manifest, MessageWords, SemanticJob, SemanticReceipt
from semantic.transitions import Derived, Forgotten
from tests import factories as make
from tests.semantic.filling import (
    IDENTITY,
    NOTHING_TO_DO,
    OFFLINE,
    OTHER,
    derive,
    fail_all,
    filled,
    say,
)
from turns.models import Message

pytestmark = pytest.mark.django_db


def test_one_manifest_is_begun_for_one_identity() -> None:
    manifest = transitions.ensure(IDENTITY)

    assert transitions.ensure(IDENTITY) == manifest
    assert (manifest.generation, manifest.state) == (1, "building")
    assert manifest.digest == IDENTITY.digest


def test_another_identity_is_generation_two_and_the_first_goes_on_answering() -> None:
    """behaviour U8"""
    first = filled()

    second = transitions.ensure(OTHER)

    first.refresh_from_db()
    assert (first.state, second.generation, second.state) == ("active", 2, "building")


def test_whoever_starts_with_what_answers_retires_what_is_built_by_other_settings() -> None:
    """Going back to the old settings stops the swap."""
    say(1)
    first = filled()
    mistaken = transitions.ensure(OTHER)
    transitions.backfill(mistaken.pk)

    assert transitions.ensure(IDENTITY) == first

    mistaken.refresh_from_db()
    assert mistaken.state == "retired"
    assert derive(mistaken) == 0
    assert not transitions.activate_when_complete(mistaken.pk)


def test_what_is_built_anew_by_the_same_settings_is_not_retired_by_a_start() -> None:
    first = filled()
    anew = transitions.begin(IDENTITY)

    assert transitions.ensure(IDENTITY) == first

    anew.refresh_from_db()
    assert anew.state == "building"


def test_a_manifest_begun_while_another_is_being_built_takes_its_place() -> None:
    first = transitions.begin(IDENTITY)
    second = transitions.begin(OTHER)

    first.refresh_from_db()
    assert (first.state, second.state, second.generation) == ("retired", "building", 2)


def test_what_was_said_before_is_filled_in_a_page_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message_ids = say(5)
    manifest = transitions.begin(IDENTITY)
    later = say(1)

    assert transitions.backfill(manifest.pk) == 5
    assert transitions.backfill(manifest.pk) == 0

    jobs = SemanticJob.objects.filter(manifest=manifest, state="queued")
    assert sorted(jobs.values_list("message_id", flat=True)) == message_ids + later


def test_a_fill_goes_on_where_it_was_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from semantic.transitions import enqueuing  # noqa: PLC0415

    monkeypatch.setattr(bounds, "RECONCILE_ROWS", 2)
    page = enqueuing._PAGE.replace("LIMIT 2000", "LIMIT 2")
    monkeypatch.setattr(enqueuing, "_PAGE", page)
    say(5)
    manifest = transitions.begin(IDENTITY)

    assert [transitions.backfill(manifest.pk) for _ in range(4)] == [2, 2, 1, 0]


def test_a_manifest_takes_over_once_it_covers_every_message() -> None:
    """failure H71: the old one answers until then, and the switch is one step"""
    say(3)
    first = filled()
    second = transitions.begin(OTHER)
    assert not transitions.activate_when_complete(second.pk)

    transitions.backfill(second.pk)
    claims = transitions.claim_jobs(second.pk, limit=2)
    transitions.persist(second.pk, [Derived(claim, make.unit_vector()) for claim in claims])
    assert not transitions.activate_when_complete(second.pk)
    derive(second)

    assert transitions.activate_when_complete(second.pk)
    assert not transitions.activate_when_complete(second.pk)
    states = Manifest.objects.order_by("pk").values_list("pk", "state")
    assert list(states) == [(first.pk, "retired"), (second.pk, "active")]


def test_a_manifest_without_messages_takes_over_at_once() -> None:
    manifest = transitions.begin(IDENTITY)
    assert transitions.activate_when_complete(manifest.pk)


def test_a_text_that_cannot_be_embedded_does_not_hold_up_a_manifest() -> None:
    say(2)
    filled()
    manifest = transitions.begin(OTHER)
    transitions.backfill(manifest.pk)

    (claim,) = transitions.claim_jobs(manifest.pk, limit=1)
    transitions.fail([(claim, ErrorCode.TEXT_NOT_EMBEDDABLE)])
    derive(manifest)

    assert transitions.activate_when_complete(manifest.pk)


def test_a_manifest_whose_provider_was_not_there_does_not_take_over() -> None:
    """What answers goes on answering, though the failures are not tried again."""
    say(2)
    filled()
    manifest = transitions.begin(OTHER)
    transitions.backfill(manifest.pk)
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        assert fail_all(manifest) == 2
        assert not transitions.activate_when_complete(manifest.pk)
        make.let_retries_come_due()
        transitions.reconcile()

    assert transitions.claim_jobs(manifest.pk, limit=9) == []
    assert not transitions.activate_when_complete(manifest.pk)


def test_the_first_manifest_answers_with_what_it_has() -> None:
    say(2)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)
    for _ in range(bounds.ROUNDS_AFTER_FAILURE + 1):
        fail_all(manifest)
        make.let_retries_come_due()
        transitions.reconcile()

    assert transitions.activate_when_complete(manifest.pk)


def test_a_rebuild_derives_everything_anew_under_the_same_identity() -> None:
    message_ids = say(3)
    first = filled()
    transitions.forget(message_ids[0])

    second = transitions.rebuild()
    assert (second.generation, second.digest) == (2, first.digest)
    assert transitions.backfill(second.pk) == 3
    assert derive(second) == 3

    assert transitions.activate_when_complete(second.pk)
    assert MessageWords.objects.count() == 3


def test_nothing_is_rebuilt_before_anything_was_begun() -> None:
    with pytest.raises(Manifest.DoesNotExist):
        transitions.rebuild()


def test_progress_counts_each_message_once() -> None:
    manifest = transitions.begin(IDENTITY)
    say(6)
    make.MessageFactory.create(assistant=True)
    make.MessageFactory.create(text=" ")
    first, second, third, *_ = transitions.claim_jobs(manifest.pk, limit=4)
    transitions.persist(manifest.pk, [Derived(first, make.unit_vector())])
    transitions.fail([(second, OFFLINE), (third, ErrorCode.TEXT_NOT_EMBEDDABLE)])

    assert transitions.progress(manifest) == transitions.Progress(6, 1, 2, 3)

    make.let_retries_come_due()
    transitions.reconcile()
    assert transitions.progress(manifest) == transitions.Progress(6, 1, 1, 4)


def test_what_is_forgotten_is_gone_and_the_message_stays() -> None:
    """behaviour U7"""
    (message_id,) = say(1)
    manifest = filled()

    assert transitions.forget(message_id) == Forgotten(embeddings=1, jobs=1)

    assert Message.objects.filter(pk=message_id).exists()
    assert not Embedding.objects.exists()
    assert not MessageWords.objects.exists()
    assert SemanticJob.objects.get().state == "invalidated"
    receipt = SemanticReceipt.objects.get(outcome="invalidated")
    assert (receipt.message_id, receipt.manifest_generation) == (message_id, 1)
    assert transitions.forget(message_id) == Forgotten(0, 0)
    assert transitions.reconcile() == NOTHING_TO_DO
    assert transitions.claim_jobs(manifest.pk, limit=9) == []


def test_a_forgotten_message_comes_back_when_it_is_changed() -> None:
    (message_id,) = say(1)
    manifest = filled()
    transitions.forget(message_id)

    Message.objects.filter(pk=message_id).update(text="New words", digest="new")

    assert derive(manifest) == 1
    assert MessageWords.objects.filter(message_id=message_id).exists()


def test_of_nothing_nothing_is_forgotten() -> None:
    assert transitions.forget(0) == Forgotten(0, 0)


def test_a_failed_message_that_is_forgotten_is_not_tried_again() -> None:
    (message_id,) = say(1)
    manifest = transitions.begin(IDENTITY)
    transitions.backfill(manifest.pk)
    fail_all(manifest)

    transitions.forget(message_id)

    assert SemanticJob.objects.get().retry_at is None


def test_it_is_logged_which_manifest_begins_takes_over_and_gives_way() -> None:
    say(2)
    with capture_logs() as events:
        filled()
        mistaken = transitions.ensure(OTHER)
        transitions.ensure(IDENTITY)
        transitions.ensure(IDENTITY)
        filled(OTHER)
    assert mistaken.generation == 2
    assert [{**event, "log_level": ""} for event in events] == [
        {"event": "semantic.begun", "generation": 1, "model": "scripted", "log_level": ""},
        {
            "event": "semantic.activated",
            "generation": 1,
            "previous": None,
            "count": 2,
            "log_level": "",
        },
        {"event": "semantic.begun", "generation": 2, "model": "better", "log_level": ""},
        {"event": "semantic.retired", "generation": 2, "state": "building", "log_level": ""},
        {"event": "semantic.begun", "generation": 3, "model": "better", "log_level": ""},
        {
            "event": "semantic.activated",
            "generation": 3,
            "previous": 1,
            "count": 2,
            "log_level": "",
        },
    ]
