"""The endpoints of the API, and what a request that one refuses must not change."""

from __future__ import annotations

from typing import Any, Final

from turns.models import Conversation, Message, Turn
from work.models import WorkJob


def rows() -> list[tuple[Any, ...]]:
    """Return what a refused request must not change."""
    return [
        *Conversation.objects.order_by("pk").values_list("pk", "title", "revision"),
        *Message.objects.order_by("pk").values_list("pk", "text"),
        *Turn.objects.order_by("pk").values_list("pk", "state", "write_mark"),
        *WorkJob.objects.order_by("pk").values_list("pk", "state", "write_mark"),
    ]


ENDPOINTS: Final = [
    ("GET", "/conversations", None),
    ("POST", "/conversations", {}),
    ("PATCH", "/conversations/{conversation}", {"title": "x"}),
    ("DELETE", "/conversations/{conversation}", None),
    ("POST", "/conversations/{conversation}/turns", {"text": "x"}),
    ("GET", "/conversations/{conversation}/messages", None),
    ("GET", "/turns/{turn}", None),
    ("POST", "/turns/{turn}/cancel", None),
    ("GET", "/messages/{message}", None),
    ("PATCH", "/messages/{message}", {"text": "x"}),
    ("DELETE", "/messages/{message}", None),
    ("GET", "/jobs", None),
    ("POST", "/conversations/{conversation}/jobs", {"kind": "deep_work", "goal": "x"}),
    ("GET", "/jobs/{job}", None),
    ("POST", "/jobs/{job}/cancel", None),
    ("GET", "/computers", None),
    ("GET", "/search", None),
]
