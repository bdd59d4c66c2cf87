"""The addresses of Holdfast."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path

from config.health import healthz

urlpatterns = [path("admin/", admin.site.urls), path("healthz", healthz)]
if find_spec("config.api"):
    from config.api import api

    urlpatterns.append(path("api/v1/", api.urls))
if find_spec("turns.urls"):
    urlpatterns.append(path("", include("turns.urls")))
