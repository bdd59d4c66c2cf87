"""Celery's entry to the sweep, for beat: one of its several triggers, none of which is
needed.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

from recovery import sweep as sweeping


@shared_task(name="recovery.tasks.sweep")
def sweep() -> dict[str, Any]:
    """Make a pass unless another process has just begun one."""
    return {kind: report.counts() for kind, report in sweeping.sweep(elect=True).items()}
