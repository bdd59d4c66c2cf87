"""A worker takes a queued turn: from then on only its fence writes."""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid4

from django.db import connection, transaction

from recovery.fences import GENERATION_SHIFT_BITS, Fence
from recovery.switches import MAY_CLAIM_SQL
from turns import events
from turns.lifecycles import KIND
from turns.transitions.locks import lock_turn, raise_revision_of

# One conditional update: the queue decides, the runtime must be alive, turns must not be
# disabled, and the wall clock of the limits stored at admission starts now.
CLAIM: Final = f"""
    UPDATE turns_turn SET state = 'running', owner = %(owner)s, claim_token = %(token)s,
        generation = generation + 1,
        write_mark = (generation + 1)::bigint << {GENERATION_SHIFT_BITS},
        attempts = attempts + 1, claimed_at = statement_timestamp(),
        deadline_at = statement_timestamp()
            + make_interval(secs => (limits ->> 'wall_clock_seconds')::float8)
    WHERE id = %(turn)s AND state = 'queued' AND cancel_requested_at IS NULL
        AND EXISTS (SELECT FROM recovery_runtime r
                    WHERE r.id = %(owner)s AND r.stopped_at IS NULL)
        AND {MAY_CLAIM_SQL}
    RETURNING generation, conversation_id
"""  # noqa: S608  a constant


@transaction.atomic(durable=True)
def claim_turn(turn_id: int, *, owner: UUID, token: UUID | None = None) -> Fence | None:
    """Return the fence of a queued turn that the runtime `owner` now runs, or None.

    None means: nothing to do. It is claimed, cancelled, ended or gone (a repeated hint); or the
    runtime is not alive any more, and then another claims it; or turns are disabled, and then
    the sweep hints again after `resume`. Nothing was written.

    A caller that may lose the connection during the commit gives its own `token` and asks
    `claim_under` on a new one.

    The runtime's row is read without a lock, because one lock for all claims of a process would
    also hold up its renewals. A burial that commits in between leaves a running turn without a
    living owner, which is what an orphan is: the next pass of the sweep ends it, and the fenced
    process writes nothing, as it stops on its own.
    """
    # A repeated hint is the common case under load; it is turned away without a lock.
    if not raise_revision_of(turn_id, queued_only=True):
        return None
    lock_turn(turn_id)
    token = token or uuid4()
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, {"turn": turn_id, "owner": owner, "token": token, "kind": KIND})
        claimed = cursor.fetchone()
    if claimed is None:
        transaction.set_rollback(True)
        return None
    generation, conversation_id = claimed
    events.announce_on_commit(conversation_id)
    return Fence(turn_id, generation, token)
