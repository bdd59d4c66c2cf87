"""What a job hears when it gets no worktree, or has none any more."""

from __future__ import annotations

from recovery.errors import ErrorCode, Refused


class WorkspaceRefused(Refused):
    """The job cannot work in the directory it names. `reason` is a sentence of ours, without
    paths: it may be shown and logged."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(code)
        self.reason = reason


class WorkspaceLost(Exception):
    """This worker may not work in the job's place any more: another claim does, or nothing is
    there. So the machine says; whose the job is, the database says."""
