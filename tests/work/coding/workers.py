"""Workers that do one coding job each, as processes that can be killed or frozen anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from django.conf import settings

from tests.support.processes import ChildProcess
from tests.work.coding.repositories import Job


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
