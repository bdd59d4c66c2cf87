"""Where a job stands outside the database, so that an adopter finds it again."""

from __future__ import annotations

from typing import Any, Final

from recovery.errors import BoundExceeded, ErrorCode
from recovery.fences import Fence
from recovery.statements import MOVED_SQL, run
from turns import events
from work import bounds
from work.transitions.locks import OWNED, next_mark_sql, presented, refusal

_CHECKPOINT: Final = f"""
    WITH {OWNED}, kept AS (
        UPDATE work_workjob j SET {{columns}}, write_mark = {next_mark_sql("j")}
        FROM mine WHERE j.id = mine.id RETURNING j.id
    )
    SELECT raised.id FROM raised LEFT JOIN kept ON true
    WHERE {MOVED_SQL.format(moved="kept.id IS NOT NULL")}
"""  # noqa: S608  constants
_SESSION: Final = _CHECKPOINT.format(
    columns="acp_session_id = %(session)s, acp_cursor = %(cursor)s"
)
_WORKSPACE: Final = _CHECKPOINT.format(
    columns="base_commit = %(base_commit)s, branch = %(branch)s"
)


def checkpoint_session(fence: Fence, session_id: str, cursor: int) -> None:
    """Remember the external session of the job, and how far it was read.

    Raises:
        StaleFence: the job has ended, was released or claimed by another. Nothing was written.
        BoundExceeded: the id is too long. Nothing was written.
    """
    if len(session_id.encode()) > bounds.ACP_SESSION_ID_MAX_BYTES:
        raise BoundExceeded(ErrorCode.PROVIDER_PROTOCOL)
    _checkpoint(fence, _SESSION, session=session_id, cursor=cursor)


def checkpoint_workspace(fence: Fence, base_commit: str, branch: str) -> None:
    """Remember the branch of the job's worktree and the commit it began from.

    Raises:
        StaleFence: the job has ended, was released or claimed by another. Nothing was written.
    """
    _checkpoint(fence, _WORKSPACE, base_commit=base_commit, branch=branch)


def _checkpoint(fence: Fence, statement: str, **columns: Any) -> None:
    kept = run(statement, presented(fence, **columns))
    if not kept:
        raise refusal(fence, "the checkpoint was not taken")
    events.announce_on_commit(kept[0][0])
