"""The Celery application. Its messages are hints: ids only, and free to be lost."""

from __future__ import annotations

import os
from typing import Any, Final

from celery import Celery
from celery.beat import EmbeddedService
from celery.signals import setup_logging, worker_init, worker_ready, worker_shutdown

from config import broker
from config.embedded.children import tell_ready, watch_parent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Celery would run Django's checks at each start of a worker and drop what they say. They load
# the page and the API, which a worker never serves.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

LOOK_UP_SECONDS: Final = 0.5

broker.register()
app = Celery("holdfast")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.imports = ("config.worker",)

_beat: Any = None


@setup_logging.connect
def _keep_logging(**_: object) -> None:
    """Leave the loggers as Django set them up; Celery's own set-up would print content."""


@worker_init.connect
def _contain(**_: object) -> None:
    from config.logging import contain_tracebacks  # noqa: PLC0415

    contain_tracebacks()
    watch_parent()


@worker_ready.connect
def _start_beat(**_: object) -> None:
    """Run beat as a thread of the embedded worker: `-B` forks a child that survives it."""
    global _beat  # noqa: PLW0603 - one worker, one beat
    if os.environ.get("HOLDFAST_BEAT") == "thread":
        _beat = EmbeddedService(app, thread=True, scheduler_cls=app.conf.beat_scheduler)
        _beat.start()
    tell_ready()


@worker_ready.connect
def _stay_interruptible(sender: Any, **_: object) -> None:
    """Make the worker look up twice a second.

    With RabbitMQ or Redis it sleeps in epoll, which a signal does not end (PEP 475): an idle
    worker would go on for ten seconds and more after SIGTERM.
    """
    if sender.hub is not None:
        sender.hub.call_repeatedly(LOOK_UP_SECONDS, _nothing)


def _nothing() -> None:
    """Being called is all."""


@worker_shutdown.connect
def _stop_beat(**_: object) -> None:
    if _beat is not None:
        _beat.stop()
