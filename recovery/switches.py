"""The release switch: whether work of one kind may begin.

    open        admitted and claimed
    draining    admission is refused with `paused`; what was admitted is claimed and runs
    disabled    nothing is claimed either; what runs goes on

Admission and the switch exclude each other: once `set_release` has returned, no admission that
read the older state is still to commit. Both go through an advisory lock of their transaction,
not through the row: it writes nothing on the way of every admission, it is fair to the one
who pauses, and it is there before the row is. A claim reads the switch without a lock, as it
reads its runtime's row: only a claim whose very statement was under way gets past it.
"""

from __future__ import annotations

from typing import Final

from django.db import connection, transaction
from django.db.models.functions import Now

from recovery.errors import ErrorCode, Refused
from recovery.models import ReleaseSwitch

State = ReleaseSwitch.State

# The first of the lock's two numbers; runtimes use locks of one number.
LOCK_CLASS: Final = 0x52535754
# Admissions wait at most five seconds for a lock; the one who pauses waits for all of them.
PATIENCE_SECONDS: Final = 20
RETRY_SECONDS: Final = 30

# For a claim's own statement: true unless the kind `%(kind)s` is disabled.
MAY_CLAIM_SQL: Final = """NOT EXISTS (SELECT FROM recovery_releaseswitch s
    WHERE s.kind = %(kind)s AND s.state = 'disabled')"""


def release(kind: str) -> ReleaseSwitch.State:
    """Return the state of the switch."""
    found = ReleaseSwitch.objects.filter(pk=kind).values_list("state", flat=True).first()
    return State.OPEN if found is None else State(found)


def require_open(kind: str) -> None:
    """Return when work of this kind may be admitted, until this transaction ends.

    Raises:
        Refused: `paused`.
    """
    with connection.cursor() as cursor:
        # A statement of its own: the next one's snapshot shows what it waited for.
        cursor.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, hashtext(%s))", [LOCK_CLASS, kind]
        )
    if release(kind) != State.OPEN:
        raise Refused(ErrorCode.PAUSED, retry_after_seconds=RETRY_SECONDS)


@transaction.atomic(durable=True)
def set_release(kind: str, state: ReleaseSwitch.State) -> ReleaseSwitch.State:
    """Set the switch; return its state before. Every admission from here on obeys it."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE_SECONDS}s'")
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK_CLASS, kind])
    before = release(kind)
    if before != state:
        ReleaseSwitch.objects.update_or_create(
            pk=kind, defaults={"state": state, "changed_at": Now()}
        )
    return before
