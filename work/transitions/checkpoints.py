"""Where a job stands outside the database, so that an adopter finds it again."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from recovery.errors import BoundExceeded, ErrorCode
from recovery.fences import Fence
from work import bounds
from work.models import WorkJob
from work.transitions.locks import lock_owned


def checkpoint_session(fence: Fence, session_id: str, cursor: int) -> None:
    """Remember the external session of the job, and how far it was read.

    Raises:
        StaleFence: the job has ended, was released or claimed by another. Nothing was written.
        BoundExceeded: the id is too long. Nothing was written.
    """
    if len(session_id.encode()) > bounds.ACP_SESSION_ID_MAX_BYTES:
        raise BoundExceeded(ErrorCode.PROVIDER_PROTOCOL)
    _checkpoint(fence, acp_session_id=session_id, acp_cursor=cursor)


def checkpoint_workspace(fence: Fence, base_commit: str, branch: str) -> None:
    """Remember the branch of the job's worktree and the commit it began from.

    Raises:
        StaleFence: the job has ended, was released or claimed by another. Nothing was written.
    """
    _checkpoint(fence, base_commit=base_commit, branch=branch)


@transaction.atomic(durable=True)
def _checkpoint(fence: Fence, **columns: Any) -> None:
    lock_owned(fence)
    WorkJob.objects.filter(pk=fence.pk).update(**columns, write_mark=fence.next_mark())
