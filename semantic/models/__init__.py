"""What is derived from messages so that they can be found, and from what.

    Manifest         building -> active -> retired       (building may be retired too)
    SemanticJob      queued -> running -> completed | failed
                     (a job whose lease expired is reclaimed: running on, attempt + 1)
                     queued, running, completed -> invalidated
    Embedding        one vector of one message under one manifest
    MessageWords     the words of one complete message, for full-text search
    SemanticReceipt  append-only and without content: how each attempt ended
    IndexedMessage   the rules that a message's own table follows for all of this

All of it can be derived again from the messages. The database holds every rule said here: see
each model's constraints and triggers.
"""

from semantic.models.embeddings import Embedding
from semantic.models.jobs import SemanticJob
from semantic.models.manifests import Manifest
from semantic.models.messages import IndexedMessage
from semantic.models.receipts import SemanticReceipt
from semantic.models.words import MessageWords

__all__ = [
    "Embedding",
    "IndexedMessage",
    "Manifest",
    "MessageWords",
    "SemanticJob",
    "SemanticReceipt",
]
