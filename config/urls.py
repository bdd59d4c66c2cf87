"""The addresses of Holdfast."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from config.api import api
from config.health import healthz

urlpatterns = [
    path("admin/", admin.site.urls),
    path("healthz", healthz),
    path("api/v1/", api.urls),
    path("", include("turns.urls")),
]
