"""Every write to what is derived from messages, but for what the messages' own triggers do.

All of them lock in one order: messages, jobs by id, vectors, manifests last. Nobody waits for a
message while holding another: whoever removes a conversation takes its messages in an order of
his own. An attempt presents its claim; what came too late is counted and not kept.
"""

from semantic.transitions.activating import Lag, activate_when_complete, lag
from semantic.transitions.claims import Claim, claim_jobs
from semantic.transitions.forgetting import Forgotten, forget
from semantic.transitions.giving_up import Shortfall, begin_anew, shortfall
from semantic.transitions.manifests import (
    Progress,
    backfill,
    begin,
    ensure,
    progress,
    rebuild,
)
from semantic.transitions.outcomes import Derived, Persisted, fail, persist
from semantic.transitions.reconciling import Reconciled, reconcile

__all__ = [
    "Claim",
    "Derived",
    "Forgotten",
    "Lag",
    "Persisted",
    "Progress",
    "Reconciled",
    "Shortfall",
    "activate_when_complete",
    "backfill",
    "begin",
    "begin_anew",
    "claim_jobs",
    "ensure",
    "fail",
    "forget",
    "lag",
    "persist",
    "progress",
    "rebuild",
    "reconcile",
    "shortfall",
]
