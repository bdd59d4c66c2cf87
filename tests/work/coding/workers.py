"""Workers that do one coding job each, as processes that can be killed or frozen anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from django.conf import settings

from tests.support.processes import ChildProcess
from tests.support.waiting import wait_until
from tests.work.coding.repositories import Job, PersonsRepository, call
from turns.tools.registry import State
from work.coding.places import Place

# Where a workspace's life can be cut.
OPENING: Final = (
    "workspace.checkpointed", "workspace.begun", "workspace.branch_made",
    "workspace.worktree_made", "workspace.checked_out", "workspace.complete",
)  # fmt: skip
CLOSING: Final = ("workspace.kept", "workspace.removed", "workspace.taken_down")


def stored(path: Path) -> Job:
    """Return the job that the file describes."""
    return Job(**json.loads(path.read_text()))


def store(job: Job, path: Path) -> None:
    """Commit the job to the file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(job)))
    partial.replace(path)


@contextmanager
def worker(
    path: Path, log: Path, *, at: str = "", environment: Mapping[str, str] = {}
) -> Iterator[ChildProcess]:
    """Give a worker on the job of the file; it stands still once it is `at` a probe."""
    process = ChildProcess(
        "tests.work.coding.worker_process",
        str(path),
        environment={
            **os.environ,
            "HOLDFAST_HOME": str(settings.HOLDFAST_HOME),
            "HOLDFAST_PROBE": at,
            "HOLDFAST_PROBE_DIR": str(path.parent),
            **environment,
        },
        log=log,
    )
    try:
        yield process
    finally:
        process.close()


def wait_until_at(path: Path, point: str) -> None:
    """Return when the worker of the job stands still there."""
    wait_until(lambda: list(path.parent.glob(f"{point}.*.reached")), f"it is at {point}")


async def go_on(path: Path) -> Job:
    """Take the job over as the next worker, and do the whole of it."""
    job = stored(path)
    workspace = await job.open()
    done = await call(workspace, "write_file", path="answer", text="42\n")
    assert done.state == State.SUCCEEDED
    assert (await call(workspace, "commit", message="The answer")).state == State.SUCCEEDED
    await workspace.close()
    return job


def assert_as_if_nothing_had_happened(repository: PersonsRepository, job: Job) -> None:
    """The branch has the one commit, the rest is as it was, and nothing lies about."""
    assert repository.git("log", "--format=%s", f"main..{job.branch}") == "The answer"
    assert repository.shown(f"{job.branch}:answer") == "42"
    assert repository.branches() == [job.branch, "main"]
    assert repository.git("rev-parse", f"{job.branch}^") == repository.git("rev-parse", "main")
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("worktree", "list", "--porcelain").count("worktree ") == 1
    assert not Place(job.pk).base.exists()
    assert [*repository.common.rglob("*.lock")] == []
    repository.git("fsck", "--strict")
