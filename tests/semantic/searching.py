"""An embedder that knows a few meanings, messages that are derived by it, and searches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from semantic import search, transitions
from semantic.embedders.embedder import Embedder, Identity, Purpose, Vector
from semantic.models import Manifest
from semantic.search import Results, Scope
from semantic.transitions import Derived
from tests.factories import ConversationFactory, MessageFactory
from turns.models import Conversation, Message

# Words that mean the same point the same way.
MEANINGS: Final = (
    "boat ship vessel",
    "money cash price cost",
    "doctor physician clinic",
    "dog hound puppy",
    "rain weather storm",
    "train railway station",
)


class KnowsMeanings:
    """Embeds a text by which of its meanings it speaks of; what speaks of none, by itself."""

    batch_items = 32

    def __init__(self, version: str = "1", meanings: Sequence[str] = MEANINGS) -> None:
        self.meanings = [set(words.split()) for words in meanings]
        self.identity = Identity("test", "meanings", version, len(meanings) + 2)
        self.asked: list[str] = []

    async def embed(
        self, texts: Sequence[str], purpose: Purpose
    ) -> Sequence[Vector | ErrorCode]:
        if purpose is Purpose.QUERY:
            self.asked += texts
        return [self.meaning(text) for text in texts]

    async def aclose(self) -> None:
        """Nothing to let go."""

    def meaning(self, text: str) -> Vector:
        """Return the unit vector of a text."""
        words = text.casefold().replace(".", " ").replace("?", " ").replace(",", " ").split()
        spoken = [float(sum(word in known for word in words)) for known in self.meanings]
        # longer texts say it less plainly
        plainness = 0.05 * len(words)
        nothing = 0.0 if any(spoken) else 1.0
        point = np.array([*spoken, plainness, nothing], dtype=np.float32)
        unit: Vector = point / np.linalg.norm(point)
        return unit


def derive(embedder: Embedder | None = None) -> Manifest:
    """Let `embedder` answer, and give every message of anybody its vector. Return what answers
    then: a new manifest for an embedder that did not answer before."""
    deriving = embedder or KnowsMeanings()
    manifest = transitions.ensure(deriving.identity)
    while transitions.backfill(manifest.pk):
        pass
    while claims := transitions.claim_jobs(manifest.pk, limit=deriving.batch_items):
        texts = [claim.text for claim in claims]
        with ThreadPoolExecutor(1) as pool:  # a loop may be running in this thread
            vectors = pool.submit(_embedded, deriving, texts).result()
        made = [
            Derived(claim, vector)
            for claim, vector in zip(claims, vectors, strict=True)
            if not isinstance(vector, ErrorCode)
        ]
        transitions.persist(manifest.pk, made)
    transitions.activate_when_complete(manifest.pk)
    return Manifest.objects.get(pk=manifest.pk, state="active")


def _embedded(embedder: Embedder, texts: Sequence[str]) -> Sequence[Vector | ErrorCode]:
    return asyncio.run(embedder.embed(texts, Purpose.PASSAGE))


def said(conversation: Conversation, *texts: str) -> list[Message]:
    """Return messages of this conversation, with their vectors."""
    messages = [MessageFactory.create(conversation=conversation, text=text) for text in texts]
    derive()
    return messages


async def conversation_of(*texts: str, **fields: Any) -> Conversation:
    def create() -> Conversation:
        conversation = ConversationFactory.create(**fields)
        said(conversation, *texts)
        return conversation

    return await in_thread(create)


async def look(query: str, scope: Scope, embedder: Any = None, **options: Any) -> Results:
    chosen = embedder or KnowsMeanings()
    return await search.search(query, scope, embedder_for=lambda _: chosen, **options)


async def by_words(query: str, scope: Scope) -> Results:
    return await search.search(query, scope, embedder_for=lambda _: None)


def texts(results: Results) -> list[str]:
    return [hit.excerpt for hit in results.hits]
