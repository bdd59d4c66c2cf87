"""A worker takes jobs for a bounded time: their attempt is its own until another follows.

A claim is one statement that waits for nobody. What others hold at the moment is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from recovery.bounds import cut_utf8
from recovery.fences import GENERATION_SHIFT_BITS
from recovery.statements import run
from semantic import bounds
from semantic.models.jobs import lease_is_over

# Expired leases go first, those of one attempt by themselves, and the oftener they were lost,
# the fewer at a time: a text that ends its worker takes the others of its batch along only
# until it stands alone, and they are not given up with it.
# Rows are found again by their place: a join would be planned for as many as there may be.
_CLAIM: Final = f"""
    WITH first AS MATERIALIZED (
        SELECT attempts FROM semantic_semanticjob
        WHERE manifest_id = %(manifest)s AND state = 'running'
            AND {lease_is_over("lease_expires_at")} AND attempts < {bounds.ATTEMPTS}
        ORDER BY lease_expires_at, id LIMIT 1
    ), lost AS MATERIALIZED (
        SELECT ctid FROM semantic_semanticjob
        WHERE manifest_id = %(manifest)s AND state = 'running'
            AND {lease_is_over("lease_expires_at")}
            AND attempts = (SELECT attempts FROM first)
        ORDER BY lease_expires_at, id
        LIMIT (SELECT CASE WHEN attempts < {bounds.ATTEMPTS - 1}
            THEN greatest(1, %(limit)s::int >> (2 * attempts)) ELSE 1 END FROM first)
        FOR NO KEY UPDATE SKIP LOCKED
    ), waiting AS MATERIALIZED (
        SELECT ctid FROM semantic_semanticjob
        WHERE manifest_id = %(manifest)s AND state = 'queued'
            AND NOT EXISTS (SELECT FROM lost)
        ORDER BY created_at, id LIMIT %(limit)s
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE semantic_semanticjob j SET state = 'running', attempts = j.attempts + 1,
        write_mark = (j.attempts + 1)::bigint << {GENERATION_SHIFT_BITS},
        claim_token = gen_random_uuid(),
        lease_expires_at = statement_timestamp() + interval '{bounds.LEASE_SECONDS} seconds'
    FROM turns_message m
    WHERE j.ctid = ANY(ARRAY(SELECT ctid FROM lost UNION ALL SELECT ctid FROM waiting))
        AND m.id = j.message_id AND EXISTS (
            SELECT FROM semantic_manifest WHERE id = %(manifest)s AND state <> 'retired')
    RETURNING j.id, j.attempts, j.claim_token, j.message_id, j.digest,
        left(m.text, {bounds.EMBEDDED_TEXT_MAX_BYTES}), j.lease_expires_at
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one job: the proof of it, and the text as it was when `digest` was its
    digest. The database's clock decides when `lease_expires_at` is."""

    job_id: int
    attempt: int
    token: UUID
    message_id: int
    digest: str
    text: str
    lease_expires_at: datetime


def claim_jobs(manifest_id: int, *, limit: int) -> list[Claim]:
    """Return up to `limit` jobs of the manifest that this caller may try now, oldest first.

    They are queued ones, or some whose lease expired. None of a retired manifest. A claim whose
    commit was lost needs no looking up: it expires.
    """
    claimed = run(_CLAIM, {"manifest": manifest_id, "limit": limit}, prepared=False)
    claimed.sort()
    return [
        Claim(job_id, attempt, token, message_id, digest, _beginning(text), lease)
        for job_id, attempt, token, message_id, digest, text, lease in claimed
    ]


def _beginning(text: str) -> str:
    return cut_utf8(text, bounds.EMBEDDED_TEXT_MAX_BYTES)
