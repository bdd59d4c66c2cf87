"""The hint that a job waits for a claim."""

from __future__ import annotations

from typing import Final

from turns.dispatch import Dispatcher
from work.lifecycles import KIND

TASK: Final = "work.tasks.run_job"

_jobs: Final = Dispatcher(KIND, TASK)

# Hint that a job waits; and wait until every such hint has left.
dispatch_job: Final = _jobs.hint
flush: Final = _jobs.flush
