"""The vector of one message."""

from __future__ import annotations

import pgtrigger
from django.db import models
from django.db.models.functions import Now
from pgvector.django import VectorField

from recovery.triggers import refuse
from semantic.models.jobs import SemanticJob
from semantic.models.manifests import Manifest
from semantic.models.scope import OfMessage
from turns.digests import DIGEST_CHARS

# Judged when the statement ends: each new vector is that of the last attempt of a job which
# the same statement completed, and of the message as it is now. The rows it depends on are
# held until the commit, so that neither edit nor swap slips in between. The job's own scope was
# proved when it was enqueued. Planned each time: see SemanticJob.
_IS_WANTED = f"""
    EXECUTE $check$
        SELECT (SELECT count(*) FROM fresh) - (SELECT count(*) FROM (
            SELECT f.id FROM fresh f
                JOIN semantic_semanticjob j ON j.id = f.job_id
                JOIN turns_message m ON m.id = f.message_id
                JOIN semantic_manifest p ON p.id = f.manifest_id
            WHERE j.state = 'completed' AND j.attempts = f.attempt
                AND j.finished_at = statement_timestamp()
                AND j.message_id = f.message_id AND j.conversation_id = f.conversation_id
                AND j.person_id = f.person_id AND j.manifest_id = f.manifest_id
                AND j.digest = f.digest AND m.digest = f.digest AND m.state <> 'streaming'
                AND p.state <> 'retired' AND vector_dims(f.vector) = p.dimensions
            ORDER BY m.id FOR SHARE OF m, p
        ) AS wanted)
    $check$ INTO unwanted;
    IF unwanted <> 0 THEN {refuse("semantic_embedding_is_of_its_message")} END IF;
    RETURN NULL;
"""  # noqa: S608  names of our own tables


class Embedding(OfMessage):
    """What the manifest makes of a message whose digest is `digest`: one unit vector.

    It is inserted by the statement that completes its job, and never changed: an edit removes
    it, and another job derives the next.
    """

    # as with jobs, no foreign key: nothing is removed through them
    manifest = models.ForeignKey(
        Manifest,
        on_delete=models.PROTECT,
        related_name="embeddings",
        db_index=False,
        db_constraint=False,
    )
    job = models.ForeignKey(
        SemanticJob,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    attempt = models.PositiveSmallIntegerField()
    digest = models.CharField(max_length=DIGEST_CHARS)
    vector = VectorField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            # also looked up by the foreign key (conversation, message)
            models.UniqueConstraint(
                fields=["conversation", "message", "manifest"],
                name="semantic_embedding_one_per_message",
            ),
        ]
        indexes = [
            # a person's vectors, compared one by one
            models.Index(
                fields=["manifest", "person", "message"], name="semantic_embedding_of_person"
            ),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="is_of_its_message",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="fresh"),  # type: ignore[no-untyped-call]
                declare=[("unwanted", "bigint")],
                func=_IS_WANTED,
            ),
            pgtrigger.Trigger(
                name="never_changes",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                func=refuse("semantic_embedding_never_changes"),
            ),
        ]

    def __str__(self) -> str:
        return f"embedding {self.pk}"
