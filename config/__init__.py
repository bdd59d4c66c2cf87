"""Composition root: settings, HTTP and worker entry points, and the embedded stack."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
