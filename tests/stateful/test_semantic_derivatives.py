"""Words are written, edited and removed while workers claim, die, come late and fail, and
manifests take over from one another; whatever the order, nothing stale is ever visible and
nothing is forgotten."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import ClassVar, Final

import numpy as np
import pytest
from django.db import connection
from django.db.models.functions import Now
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from recovery.errors import ErrorCode
from semantic import bounds, transitions
from semantic.embedders.embedder import Identity
from semantic.models import Embedding, Manifest, MessageWords, SemanticJob
from semantic.transitions import Claim, Derived
from tests import factories as make
from turns.digests import digest
from turns.models import Message

IDENTITIES: Final = [Identity("test", name, "1", 8) for name in ("one", "two")]
CODES: Final = [
    ErrorCode.SEMANTIC_PROVIDER_OFFLINE,
    ErrorCode.PROVIDER_RATE_LIMITED,
    ErrorCode.TEXT_NOT_EMBEDDABLE,
]
TEXTS: Final = st.sampled_from(["An apple.", "A pear.", "Seven plums", " ", ""])
LEASE: Final = timedelta(seconds=bounds.LEASE_SECONDS)
AGED: Final = {
    "semantic_semanticjob": ("created_at", "finished_at", "lease_expires_at", "retry_at"),
    "semantic_manifest": ("created_at", "covered_at", "activated_at", "finished_at"),
    "semantic_embedding": ("created_at",),
}
_LATE: Final = """
    WITH done AS (
        UPDATE semantic_semanticjob SET state = 'completed', write_mark = %(mark)s,
            finished_at = statement_timestamp() WHERE id = %(job)s RETURNING *
    )
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT manifest_id, message_id, conversation_id, person_id, id, %(attempt)s, %(digest)s,
        array_fill(1::real, ARRAY[8])::vector FROM done
"""


def vector_of(text_digest: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return what both embedders make of a text: its digest can be told from it."""
    numbers = np.frombuffer(bytes.fromhex(text_digest), np.uint8)[:8].astype(np.float32) + 1
    unit: np.ndarray[tuple[int], np.dtype[np.float32]] = numbers / np.linalg.norm(numbers)
    return unit


class Derivatives(RuleBasedStateMachine):
    """One conversation, its words, and everybody who derives something from them."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[int, str] = {}
        self.forgotten: set[tuple[int, int, str]] = set()
        self.claims: list[Claim] = []
        self.manifest_of: dict[int, int] = {}

    @initialize()
    def begin_with_words(self) -> None:
        self.conversation = make.ConversationFactory.create()
        self.write("Said before there was a search.")
        transitions.ensure(IDENTITIES[0])

    # --- what people do ---

    @rule(text=TEXTS)
    def write(self, text: str) -> None:
        message = make.MessageFactory.create(conversation=self.conversation, text=text)
        self.texts[message.pk] = text

    @rule(text=TEXTS)
    def answer(self, text: str) -> None:
        """An answer that streamed comes to its end."""
        message = make.MessageFactory.create(conversation=self.conversation, assistant=True)
        Message.objects.filter(pk=message.pk).update(
            text=text,
            digest=digest(text),
            state="interrupted",
            finished_at=message.created_at,
        )
        self.texts[message.pk] = text

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), text=TEXTS)
    def edit(self, data: st.DataObject, text: str) -> None:
        self.edit_one(data.draw(st.sampled_from(sorted(self.texts))), text)

    def edit_one(self, pk: int, text: str) -> None:
        edited = Message.objects.filter(pk=pk, role="user")
        if edited.update(text=text, digest=digest(text)):
            self.texts[pk] = text

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        pk = data.draw(st.sampled_from(sorted(self.texts)))
        Message.objects.filter(pk=pk).delete()
        del self.texts[pk]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        pk = data.draw(st.sampled_from(sorted(self.texts)))
        transitions.forget(pk)
        assert not Embedding.objects.filter(message_id=pk).exists()
        self.forgotten |= {
            (pk, manifest.pk, digest(self.texts[pk])) for manifest in self.living()
        }

    # --- manifests ---

    @rule(identity=st.sampled_from(IDENTITIES))
    def start(self, identity: Identity) -> None:
        transitions.ensure(identity)

    @precondition(lambda self: self.living())
    @rule()
    def rebuild(self) -> None:
        transitions.rebuild()

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        transitions.backfill(data.draw(st.sampled_from(self.living())).pk)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        self.swap_to(data.draw(st.sampled_from(self.living())))

    @precondition(lambda self: self.living())
    @rule(text=TEXTS)
    def swap_while_somebody_talks(self, text: str) -> None:
        """What could be claimed is derived, and something is said before the swap."""
        manifest = self.living()[-1]
        while transitions.backfill(manifest.pk):
            pass
        while claims := transitions.claim_jobs(manifest.pk, limit=8):
            derived = [Derived(claim, vector_of(claim.digest)) for claim in claims]
            transitions.persist(manifest.pk, derived)
        self.write(text)
        self.swap_to(manifest)

    def swap_to(self, manifest: Manifest) -> None:
        if transitions.activate_when_complete(manifest.pk):
            self.seen["swapped"] += 1
            self.it_lacks_only_what_is_new(Manifest.objects.get(pk=manifest.pk))

    # --- workers ---

    @precondition(lambda self: self.living())
    @rule(data=st.data(), limit=st.integers(1, 4))
    def claim(self, data: st.DataObject, limit: int) -> None:
        self.claim_for(data.draw(st.sampled_from(self.living())), limit)

    def claim_for(self, manifest: Manifest, limit: int) -> None:
        before = dict(
            SemanticJob.objects.filter(state="running").values_list("pk", "lease_expires_at")
        )
        for claim in transitions.claim_jobs(manifest.pk, limit=limit):
            assert digest(claim.text) == claim.digest
            held = before.get(claim.job_id)
            assert held is None or held < claim.lease_expires_at
            self.claims.append(claim)
            self.manifest_of[claim.job_id] = manifest.pk

    @precondition(lambda self: self.living())
    @rule(limit=st.integers(1, 4))
    def work(self, limit: int) -> None:
        """A worker claims and persists without anything between."""
        for manifest in self.living():
            before = len(self.claims)
            self.claim_for(manifest, limit)
            for claim in self.claims[before:]:
                self.persist_one(claim)

    @precondition(lambda self: self.living())
    @rule(text=TEXTS, gone=st.booleans())
    def change_in_mid_call(self, text: str, *, gone: bool) -> None:
        """A worker claims, and the words are changed or removed before it persists."""
        before = len(self.claims)
        self.claim_for(self.living()[-1], 1)
        for claim in self.claims[before:]:
            if gone:
                Message.objects.filter(pk=claim.message_id).delete()
                del self.texts[claim.message_id]
            else:
                self.edit_one(claim.message_id, text)
            self.persist_one(claim)

    @precondition(lambda self: self.living())
    @rule(code=st.sampled_from(CODES))
    def break_off(self, code: ErrorCode) -> None:
        """A worker claims, and its provider fails."""
        before = len(self.claims)
        self.claim_for(self.living()[-1], 2)
        for claim in self.claims[before:]:
            assert transitions.fail([(claim, code)]) == 1
            self.seen["failed"] += 1

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def persist(self, data: st.DataObject) -> None:
        """Whoever claimed, however long ago, comes with a result."""
        self.persist_one(data.draw(st.sampled_from(self.claims)))

    def persist_one(self, claim: Claim) -> None:
        derived = [Derived(claim, vector_of(claim.digest))]
        manifest_id = self.manifest_of[claim.job_id]
        persisted = transitions.persist(manifest_id, derived)
        assert transitions.persist(manifest_id, derived) == persisted
        self.seen["completed" if persisted.completed else "invalidated"] += 1

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def persist_past_the_functions(self, data: st.DataObject) -> None:
        """The same by raw SQL: it is refused, or it was right."""
        claim = data.draw(st.sampled_from(self.claims))
        with suppress(Exception), connection.cursor() as cursor:
            cursor.execute(
                _LATE.replace(
                    "array_fill(1::real, ARRAY[8])::vector",
                    f"'{vector_of(claim.digest).tolist()}'::vector",
                ),
                {
                    "job": claim.job_id,
                    "mark": (claim.attempt << 32) | 9,
                    "attempt": claim.attempt,
                    "digest": claim.digest,
                },
            )

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), code=st.sampled_from(CODES))
    def fail(self, data: st.DataObject, code: ErrorCode) -> None:
        claim = data.draw(st.sampled_from(self.claims[-4:]))
        transitions.fail([(claim, code)])

    @rule()
    def time_passes(self) -> None:
        for job in SemanticJob.objects.filter(state="running"):
            make.expired(job)
        make.let_retries_come_due()

    @rule()
    def a_lease_passes(self) -> None:
        """All that was written is as much older by the database's clock."""
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            for table, columns in AGED.items():
                moved = ", ".join(f"{name} = {name} - %(lease)s::interval" for name in columns)
                cursor.execute(f"UPDATE {table} SET {moved}", {"lease": str(LEASE)})
            cursor.execute("RESET session_replication_role")

    @rule()
    def reconcile(self) -> None:
        transitions.reconcile()

    @rule()
    def get_everything_done(self) -> None:
        """With a provider that is there again, every message of a manifest gets its vector."""
        for _ in range(bounds.RECONCILE_ROWS):
            self.time_passes()
            done = not transitions.reconcile().more
            for manifest in self.living():
                while claims := transitions.claim_jobs(manifest.pk, limit=8):
                    done = False
                    derived = [Derived(claim, vector_of(claim.digest)) for claim in claims]
                    transitions.persist(manifest.pk, derived)
            if done:
                break
        for manifest in self.living():
            assert not self.lacking(manifest)
            self.seen["covered"] += 1

    # --- what always holds ---

    @invariant()
    def no_stale_vector_is_ever_visible(self) -> None:
        for kept in Embedding.objects.select_related("manifest"):
            assert kept.digest == digest(self.texts[kept.message_id])
            assert np.allclose(np.asarray(kept.vector, np.float32), vector_of(kept.digest))
            job = SemanticJob.objects.get(pk=kept.job_id)
            assert (job.state, job.attempts) == ("completed", kept.attempt)

    @invariant()
    def no_message_is_forgotten(self) -> None:
        """Under a manifest that was filled, each has its vector, or a job that says why not."""
        for manifest in self.living():
            if manifest.covered_at is None:
                continue
            for pk in self.lacking(manifest):
                last = self.last_job(manifest, pk)
                assert last is not None
                assert last.digest == digest(self.texts[pk])
                assert last.state in {"queued", "running", "failed"}

    @invariant()
    def words_are_those_that_are_said(self) -> None:
        kept = set(MessageWords.objects.values_list("message_id", flat=True))
        assert kept <= {pk for pk, text in self.texts.items() if text.strip()}

    @invariant()
    def one_manifest_answers(self) -> None:
        states = Counter(manifest.state for manifest in self.living())
        assert states["active"] <= 1
        assert states["building"] <= 1

    def it_lacks_only_what_is_new(self, manifest: Manifest) -> None:
        """What was said or changed since it was covered may be on its way: not for longer than
        a lease, and behind a failure only where the provider has made a vector since."""
        assert manifest.covered_at is not None
        vectors = Embedding.objects.filter(manifest=manifest)
        for pk in self.lacking(manifest):
            jobs = SemanticJob.objects.filter(manifest=manifest, message_id=pk)
            first, last = (
                jobs.filter(digest=digest(self.texts[pk])),
                self.last_job(manifest, pk),
            )
            assert last is not None
            assert last.digest == digest(self.texts[pk])
            # those of other words, or of these before they were changed, speak of the past
            began = first.exclude(state="invalidated").order_by("pk")[0]
            assert began.created_at > manifest.covered_at
            if last.state == "failed":
                assert vectors.filter(created_at__gt=last.finished_at).exists()
                self.seen["swapped behind a failure"] += 1
            else:
                assert last.state in {"queued", "running"}
                # a moment has passed since the swap
                lease = timedelta(seconds=bounds.SWAP_LAG_SECONDS + 5)
                assert jobs.filter(pk=last.pk, created_at__gt=Now() - lease).exists()
                self.seen["swapped with one on its way"] += 1

    # --- what the machine knows ---

    @staticmethod
    def living() -> list[Manifest]:
        return list(Manifest.objects.exclude(state="retired").order_by("pk"))

    @staticmethod
    def last_job(manifest: Manifest, pk: int) -> SemanticJob | None:
        jobs = SemanticJob.objects.filter(manifest=manifest, message_id=pk)
        return jobs.order_by("pk").last()

    def lacking(self, manifest: Manifest) -> list[int]:
        """Return the messages that ought to have a vector under the manifest and have none,
        but for those that were forgotten or end without one."""
        mine = Embedding.objects.filter(manifest=manifest)
        have = set(mine.values_list("message_id", flat=True))
        return [pk for pk in self.texts if pk not in have and self.is_wanted(manifest, pk)]

    def is_wanted(self, manifest: Manifest, pk: int) -> bool:
        if not self.texts[pk].strip():
            return False
        if (pk, manifest.pk, digest(self.texts[pk])) in self.forgotten:
            return False
        last = self.last_job(manifest, pk)
        return not (last is not None and last.state == "failed" and last.retry_at is None)

    def teardown(self) -> None:
        """Remove what this run made; manifests stay, but retired."""
        with suppress(AttributeError):
            self.conversation.delete()
        Manifest.objects.exclude(state="retired").update(
            state="retired", finished_at=self.conversation.created_at
        )
        while transitions.reconcile().more:
            pass


@pytest.mark.timeout(400)
@pytest.mark.django_db(transaction=True)
def test_whatever_the_order_nothing_stale_is_visible_and_nothing_is_forgotten() -> None:
    Derivatives.seen.clear()
    run_state_machine_as_test(
        Derivatives,
        settings=settings(
            max_examples=14,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    # how the rest came about is up to chance
    assert Derivatives.seen["completed"]
