"""An attempt ends: with its vector, with a code, or overtaken by what became of its message.

The attempt and its token are the proof; the message's digest and the manifest are looked at
under their locks. Order of locks: messages, jobs, vectors, manifest. What somebody is changing
or removing just now is passed over and waited for one at a time, holding nothing: whoever
removes a conversation takes messages, and their jobs, in an order of his own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from recovery.arrays import array
from recovery.errors import ErrorCode
from recovery.fences import GENERATION_SHIFT_BITS, WRITE_COUNT_MASK
from recovery.statements import run
from semantic import bounds
from semantic.transitions.claims import Claim
from semantic.vectors import VectorArray

# They speak of the text, or were tried often enough: no other job follows.
NOT_TRIED_AGAIN: Final = frozenset(
    {ErrorCode.TEXT_NOT_EMBEDDABLE, ErrorCode.SEMANTIC_ATTEMPTS_EXHAUSTED}
)

_MARKED: Final = f"""
    write_mark = (j.attempts::bigint << {GENERATION_SHIFT_BITS})
        | ((j.write_mark + 1) & {WRITE_COUNT_MASK})
"""
_GIVEN: Final = """
    unnest(%(jobs)s::bigint[], %(attempts)s::int[], %(tokens)s::uuid[], %(messages)s::bigint[]
"""
_OURS: Final = """
    j.state = 'running' AND j.attempts = {claim}.attempt AND j.claim_token = {claim}.token
"""
# Each step carries along what the next needs: planned without knowing the sizes, a join of two
# of them would compare all with all.
_PERSIST: Final = f"""
    WITH said AS MATERIALIZED (
        SELECT g.*, m.digest FROM {_GIVEN}, %(vectors)s::vector[])
            AS g(job_id, attempt, token, message_id, vector)
        JOIN turns_message m ON m.id = g.message_id
        ORDER BY m.id FOR SHARE OF m {{unless_busy}}
    ), held AS MATERIALIZED (
        SELECT j.id, s.vector FROM said s JOIN semantic_semanticjob j ON j.id = s.job_id
        WHERE j.manifest_id = %(manifest)s AND j.message_id = s.message_id
            AND j.digest = s.digest AND {_OURS.format(claim="s")}
            AND (SELECT e.id FROM semantic_embedding e
                WHERE e.conversation_id = j.conversation_id AND e.message_id = j.message_id
                    AND e.manifest_id = j.manifest_id) IS NULL
        ORDER BY j.id FOR NO KEY UPDATE OF j
    ), meant AS MATERIALIZED (
        SELECT generation FROM semantic_manifest
        WHERE id = %(manifest)s AND state <> 'retired' FOR SHARE
    ), done AS (
        UPDATE semantic_semanticjob j SET state = 'completed',
            finished_at = statement_timestamp(), {_MARKED}
        FROM held, meant WHERE j.id = held.id
        RETURNING j.id, j.message_id, j.conversation_id, j.person_id, j.attempts, j.digest,
            held.vector, meant.generation
    ), written AS (
        INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id,
            job_id, attempt, digest, vector)
        SELECT %(manifest)s, message_id, conversation_id, person_id, id, attempts, digest,
            vector
        FROM done
    ), told AS (
        INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, attempt,
            outcome, error_code)
        SELECT id, message_id, generation, attempts, 'completed', '' FROM done
    )
    SELECT id FROM done
"""  # noqa: S608  constants
_PERSIST_FREE: Final = _PERSIST.format(unless_busy="SKIP LOCKED")
_PERSIST_WAITING: Final = _PERSIST.format(unless_busy="")
# What can still be ours by then is of a retired manifest, or of a message that was changed, or
# given another vector, behind the triggers' back. An attempt whose own completion was not heard
# of has completed.
_INVALIDATE: Final = f"""
    WITH given AS MATERIALIZED (
        SELECT * FROM {_GIVEN}) AS g(job_id, attempt, token, message_id)
    ), ended AS (
        UPDATE semantic_semanticjob j SET state = 'invalidated',
            finished_at = statement_timestamp(), {_MARKED}
        FROM given g WHERE j.id = g.job_id AND {_OURS.format(claim="g")}
    ), overtaken AS MATERIALIZED (
        SELECT g.* FROM given g WHERE NOT EXISTS (
            SELECT FROM semantic_semanticjob j WHERE j.id = g.job_id AND j.state = 'completed'
                AND j.attempts = g.attempt AND j.claim_token = g.token)
    ), told AS (
        INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, attempt,
            outcome, error_code)
        SELECT o.job_id, o.message_id, p.generation, o.attempt, 'invalidated', ''
        FROM overtaken o JOIN semantic_manifest p ON p.id = %(manifest)s
        ON CONFLICT DO NOTHING
    )
    SELECT job_id FROM overtaken
"""  # noqa: S608  constants
_FAIL: Final = f"""
    WITH held AS MATERIALIZED (
        SELECT j.id, g.code, g.again AND j.round <= {bounds.ROUNDS_AFTER_FAILURE} AS again
        FROM {_GIVEN}, %(codes)s::text[], %(again)s::bool[])
            AS g(job_id, attempt, token, message_id, code, again)
        JOIN semantic_semanticjob j ON j.id = g.job_id
        WHERE {_OURS.format(claim="g")}
        ORDER BY j.id FOR NO KEY UPDATE OF j {{unless_busy}}
    ), done AS (
        UPDATE semantic_semanticjob j SET state = 'failed', error_code = held.code,
            finished_at = statement_timestamp(), {_MARKED},
            retry_at = CASE WHEN held.again THEN statement_timestamp()
                + interval '{bounds.COOL_DOWN_SECONDS} seconds' END
        FROM held WHERE j.id = held.id
        RETURNING j.id, j.message_id, j.manifest_id, j.attempts, j.error_code
    ), told AS (
        INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, attempt,
            outcome, error_code)
        SELECT d.id, d.message_id, p.generation, d.attempts, 'failed', d.error_code
        FROM done d JOIN semantic_manifest p ON p.id = d.manifest_id
    )
    SELECT id FROM done
"""  # noqa: S608  constants
_FAIL_FREE: Final = _FAIL.format(unless_busy="SKIP LOCKED")
_FAIL_WAITING: Final = _FAIL.format(unless_busy="")
# Asked behind those: by then a call whose end was not heard of has ended.
_HAVE_FAILED: Final = f"""
    SELECT j.id FROM {_GIVEN}) AS g(job_id, attempt, token, message_id)
        JOIN semantic_semanticjob j ON j.id = g.job_id
    WHERE j.state = 'failed' AND j.attempts = g.attempt AND j.claim_token = g.token
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Derived:
    """What an embedder made of a claim's text: a unit vector of the manifest's dimensions."""

    claim: Claim
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Persisted:
    """Which jobs were completed, and which attempts came too late: the message was changed or
    removed, another attempt followed, or the manifest was retired."""

    completed: frozenset[int]
    invalidated: frozenset[int]


def persist(manifest_id: int, derived: Sequence[Derived]) -> Persisted:
    """Complete the jobs of these claims together with their vectors, as far as they are still
    wanted; of the others nothing is kept but a receipt.

    It may be called again when the end of a call was not known: what that call completed counts
    as completed.
    """
    if not derived:
        return Persisted(frozenset(), frozenset())
    completed = _written(_PERSIST_FREE, manifest_id, derived)
    invalidated: set[int] = set()
    for late in derived:
        if late.claim.job_id in completed:
            continue
        written = _written(_PERSIST_WAITING, manifest_id, [late])
        if not written and _rows(
            _INVALIDATE, _proofs([late.claim]) | {"manifest": manifest_id}
        ):
            invalidated.add(late.claim.job_id)
        else:
            completed.add(late.claim.job_id)
    return Persisted(frozenset(completed), frozenset(invalidated))


def fail(failures: Collection[tuple[Claim, ErrorCode]]) -> int:
    """End the jobs of these claims with their codes; return how many have failed by them.

    It may be called again when the end of a call was not known: what that call ended counts.
    Another job for the same message may follow after a pause, unless the code is one of
    `NOT_TRIED_AGAIN` or so many have followed already.
    """
    if not failures:
        return 0
    ended = _failed(_FAIL_FREE, failures)
    for failure in failures:
        if failure[0].job_id not in ended:
            ended |= _failed(_FAIL_WAITING, [failure])
    others = [claim for claim, _ in failures if claim.job_id not in ended]
    if others:
        ended |= _rows(_HAVE_FAILED, _proofs(others))
    return len(ended)


def _failed(statement: str, failures: Collection[tuple[Claim, ErrorCode]]) -> set[int]:
    codes = [code for _, code in failures]
    return _rows(
        statement,
        _proofs([claim for claim, _ in failures])
        | {
            "codes": array(code.value for code in codes),
            "again": array(str(code not in NOT_TRIED_AGAIN) for code in codes),
        },
    )


def _written(statement: str, manifest_id: int, derived: Sequence[Derived]) -> set[int]:
    return _rows(
        statement,
        _proofs([one.claim for one in derived])
        | {
            "vectors": VectorArray([one.vector for one in derived]),
            "manifest": manifest_id,
        },
    )


def _rows(statement: str, parameters: dict[str, Any]) -> set[int]:
    return {job_id for (job_id,) in run(statement, parameters, prepared=False)}


def _proofs(claims: Sequence[Claim]) -> dict[str, Any]:
    return {
        "jobs": array(claim.job_id for claim in claims),
        "attempts": array(claim.attempt for claim in claims),
        "tokens": array(claim.token for claim in claims),
        "messages": array(claim.message_id for claim in claims),
    }
