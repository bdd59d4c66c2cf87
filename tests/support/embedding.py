"""An embedder in this process that does what a test tells it, and messages for it to embed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from django.db import connection

from recovery.errors import ErrorCode
from semantic import transitions
from semantic.embedders.embedder import Identity, Purpose, Vector
from semantic.models import Manifest, SemanticJob
from semantic.worker import EmbedderFor, SemanticWorker
from tests.factories import ConversationFactory, MessageFactory
from turns.digests import digest
from turns.models import Conversation, Message

IDENTITY = Identity("test", "scripted", "1", 8)
Action = BaseException | Callable[[Sequence[str]], Awaitable[Any]]


def vector_of(text: str) -> Vector:
    """Return a unit vector that no other text has."""
    numbers = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint32)
    vector = numbers.astype(np.float32) / np.float32(2**32) - np.float32(0.5)
    unit: Vector = vector / np.linalg.norm(vector)
    return unit


class ScriptedEmbedder:
    """Embeds well unless the next of its `script` says otherwise, a call each.

    An exception is raised; a function is awaited with the texts, and what it returns, if it
    returns something, are the outcomes. `poison` are texts it breaks on whenever it sees them.
    """

    def __init__(
        self,
        *script: Action,
        identity: Identity = IDENTITY,
        batch_items: int = 32,
        poison: Sequence[str] = (),
    ) -> None:
        self.identity = identity
        self.batch_items = batch_items
        self.script = list(script)
        self.poison = set(poison)
        self.calls: list[list[str]] = []

    async def embed(
        self, texts: Sequence[str], purpose: Purpose
    ) -> Sequence[Vector | ErrorCode]:
        assert purpose is Purpose.PASSAGE
        self.calls.append(list(texts))
        action = self.script.pop(0) if self.script else None
        if isinstance(action, BaseException):
            raise action
        if action is not None and (outcomes := await action(texts)) is not None:
            return outcomes
        if self.poison & set(texts):
            raise RuntimeError
        return [vector_of(text) for text in texts]

    async def aclose(self) -> None:
        """There is nothing to let go."""


class Held:
    """A call of the embedder that waits, on its loop, until the test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()

    async def __call__(self, _texts: Sequence[str]) -> None:
        self.reached.set()
        while not self.released.is_set():  # noqa: ASYNC110 - the test is on another thread
            await asyncio.sleep(0.01)


def worker_for(*embedders: ScriptedEmbedder) -> SemanticWorker:
    """Return a worker whose process has these embedders."""
    return SemanticWorker(has(*embedders))


def has(*embedders: ScriptedEmbedder) -> EmbedderFor:
    """Return what a worker asks for the embedder of a manifest."""
    known = {embedder.identity.digest: embedder for embedder in embedders}
    return lambda manifest: known.get(manifest.digest)


def active(embedder: ScriptedEmbedder) -> Manifest:
    """Return the manifest of this embedder, begun now and answering: nothing is said yet."""
    manifest = begun(embedder)
    assert transitions.activate_when_complete(manifest.pk)
    manifest.refresh_from_db()
    return manifest


def begun(embedder: ScriptedEmbedder) -> Manifest:
    """Return the manifest of this embedder, begun now and with a job for all that was said."""
    manifest = transitions.begin(embedder.identity)
    while transitions.backfill(manifest.pk):
        pass
    return manifest


def said(*texts: str, conversation: Conversation | None = None) -> list[Message]:
    """Return messages that say this, in one conversation."""
    place = conversation or ConversationFactory.create()
    return [
        MessageFactory.create(conversation=place, text=text, digest=digest(text))
        for text in texts
    ]


def expire_leases() -> None:
    """Age every lease by the database's clock, as if its time had passed."""
    _age("lease_expires_at", "state = 'running'")


def cool_down() -> None:
    """Age every failure that another job is to follow, as if the pause had passed."""
    _age("retry_at", "retry_at IS NOT NULL")


def _age(column: str, which: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(
            f"UPDATE semantic_semanticjob SET {column} = statement_timestamp() "
            f"- interval '1 millisecond' WHERE {which}"
        )
        cursor.execute("RESET session_replication_role")


def job_of(message: Message) -> SemanticJob:
    """Return the newest job of the message."""
    job = SemanticJob.objects.filter(message_id=message.pk).order_by("pk").last()
    assert job is not None
    return job
