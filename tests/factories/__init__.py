"""Rows the constraints accept: one factory for each model, one trait for each state.

A trait fills what its state needs: `TurnFactory.create(running=True)` has a living owner, a
claim and a wall clock. Children can only be born under a running turn, so `asked=True` gives it
the receipt and the provider step of a request that is under way.
"""

from __future__ import annotations

from recovery.fences import Fence
from tests.factories.recovery import (
    RuntimeFactory,
    UserFactory,
)
from tests.factories.semantic import (
    EmbeddingFactory,
    ManifestFactory,
    MessageWordsFactory,
    SemanticJobFactory,
    SemanticReceiptFactory,
    claim_of,
    expired,
    let_retries_come_due,
    unit_vector,
)
from tests.factories.turns import (
    ApiTokenFactory,
    ConversationFactory,
    MessageFactory,
    NoteFactory,
    ProviderStepFactory,
    ReceiptFactory,
    TextChunkFactory,
    ToolStepFactory,
    TurnFactory,
    WebhookAddressFactory,
    request_facts,
)
from tests.factories.work import (
    ComputerFactory,
    JobReportFactory,
    JobReportMessageFactory,
    WorkJobFactory,
    WorkProviderStepFactory,
    WorkStepFactory,
)
from turns.models import Turn
from work.models import WorkJob

__all__ = [
    "ApiTokenFactory",
    "ComputerFactory",
    "ConversationFactory",
    "EmbeddingFactory",
    "JobReportFactory",
    "JobReportMessageFactory",
    "ManifestFactory",
    "MessageFactory",
    "MessageWordsFactory",
    "NoteFactory",
    "ProviderStepFactory",
    "ReceiptFactory",
    "RuntimeFactory",
    "SemanticJobFactory",
    "SemanticReceiptFactory",
    "TextChunkFactory",
    "ToolStepFactory",
    "TurnFactory",
    "UserFactory",
    "WebhookAddressFactory",
    "WorkJobFactory",
    "WorkProviderStepFactory",
    "WorkStepFactory",
    "claim_of",
    "expired",
    "fence_of",
    "let_retries_come_due",
    "request_facts",
    "unit_vector",
]


def fence_of(row: Turn | WorkJob) -> Fence:
    """Return the proof the owner of a running turn or job holds."""
    assert row.claim_token is not None
    return Fence(row.pk, row.generation, row.claim_token)
