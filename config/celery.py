"""The Celery application. Its messages are hints: ids only, acknowledged early, free to be lost."""

from __future__ import annotations

import os
from importlib.util import find_spec

from celery import Celery

from config import broker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

broker.register()
app = Celery("holdfast")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

if find_spec("config.worker"):
    app.conf.imports = ("config.worker",)
