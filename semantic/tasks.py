"""Celery's entries to derivatives, for beat: hints, none of which is needed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery import shared_task

from semantic import host, transitions


@shared_task(name="semantic.tasks.drain")
def drain() -> None:
    """Let this process's host look for what waits, and return at once."""
    host.wake()


@shared_task(name="semantic.tasks.reconcile")
def reconcile() -> dict[str, Any]:
    """Put right one bounded lot of what was missed, lost or left over."""
    return asdict(transitions.reconcile())
