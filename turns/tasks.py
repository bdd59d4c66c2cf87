"""Celery's entry to turns. A message is a hint: it carries an id, and a claim decides."""

from __future__ import annotations

from celery import shared_task

from turns import host


@shared_task(name="turns.tasks.run_turn")
def run_turn(turn_id: int) -> None:
    """Hand the turn to this process's host and return at once."""
    host.submit(turn_id)
