"""Celery's entry to jobs. A message is a hint: it carries an id, and a claim decides."""

from __future__ import annotations

from importlib import import_module

from celery import shared_task


@shared_task(name="work.tasks.run_job")
def run_job(job_id: int) -> None:
    """Hand the job to this process's host and return at once."""
    import_module("work.host").submit(job_id)
