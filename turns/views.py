"""The page: one conversation, rendered whole, which its scripts then keep up to date.

What the scripts are told goes into a JSON element that nothing executes; everything they draw
later, they clone from the same templates that are rendered here.
"""

from __future__ import annotations

from typing import Any, Final, cast

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, LogoutView
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from turns import bounds, frames, pages, projection
from turns.ids import parse_id
from turns.panels import panels
from turns.schemas import CUT_CODES

LISTED_CONVERSATIONS: Final = 50
OLDER_MESSAGES: Final = 30
# Enough on both sides of a message to fill a screen.
AROUND_MESSAGES: Final = 60
PLACES: Final = ("before", "after", "around")

sign_in: Final = LoginView.as_view(
    template_name="turns/login.html", redirect_authenticated_user=True
)
sign_out: Final = LogoutView.as_view()


@require_safe
@never_cache
@login_required
def latest(request: HttpRequest) -> HttpResponse:
    """Lead to the conversation that was active last, or to a new one."""
    found = pages.conversations(_person(request), limit=1)
    return redirect("conversation", found[0][0].id) if found else redirect("new")


@require_safe
@never_cache
@login_required
def new(request: HttpRequest) -> HttpResponse:
    """Show a conversation that begins to exist with its first message."""
    return _page(request, None)


@require_safe
@never_cache
@login_required
def conversation(request: HttpRequest, conversation_id: str) -> HttpResponse:
    """Show one conversation. An unknown and a foreign one are the same 404."""
    return _page(request, _snapshot(request, conversation_id))


@require_GET
@never_cache
@login_required
def page_of_messages(request: HttpRequest, conversation_id: str) -> JsonResponse:
    """Answer with messages as the page shows them, newest first: those next before or after a
    message, or around it."""
    places = {name: _id(text) for name in PLACES if (text := request.GET.get(name)) is not None}
    if len(places) != 1:
        raise Http404
    page = pages.messages(
        _id(conversation_id),
        _person(request),
        **places,
        limit=AROUND_MESSAGES if "around" in places else OLDER_MESSAGES,
    )
    if page is None:
        raise Http404
    return JsonResponse(
        {
            "messages": [message.model_dump(mode="json") for message in page.messages],
            "next": page.next,
            "previous": page.previous,
        }
    )


def _page(request: HttpRequest, shown: projection.Snapshot | None) -> HttpResponse:
    listed = pages.conversations(_person(request), limit=LISTED_CONVERSATIONS + 1)
    content: dict[str, Any] = {}
    if shown is not None:
        cursor, content = frames.snapshot_content(shown)
        content = {"type": "snapshot", "cursor": str(cursor), **content}
    told = {
        "user": str(_person(request)),
        "conversation": None if shown is None else shown.conversation.id,
        "snapshot": content or None,
        "cutCodes": sorted(CUT_CODES),
        "messageBytes": bounds.USER_MESSAGE_MAX_BYTES,
        "login": reverse("login"),
        "panels": [
            {"key": panel.key, "script": static(panel.script), "told": dict(panel.told)}
            for panel in panels
            if panel.script
        ],
    }
    context = {
        "name": _name(shown, content),
        "told": told,
        "shown": None if shown is None else shown.conversation,
        "messages": _looks(content),
        "conversations": [row for row, _ in listed[:LISTED_CONVERSATIONS]],
        "next_conversations": listed[-2][1] if len(listed) > LISTED_CONVERSATIONS else None,
        "panels": list(panels),
        "is_demonstration": settings.LLM_API == "local",
    }
    return render(request, "turns/page.html", context)


def _name(shown: projection.Snapshot | None, content: dict[str, Any]) -> str:
    """Return what the conversation is called: by its title, or by its first words shown."""
    if shown is None:
        return "New conversation"
    words = content["messages"][-1]["text"] if content["messages"] else ""
    return shown.conversation.title or (words or "")[: pages.EXCERPT_CHARS] or "Conversation"


def _looks(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a snapshot oldest first, each with the look the page gives it."""
    turn = content.get("turn")
    return [
        {
            **message,
            "look": _look(message, turn),
            "steps": _in_words(message["steps"]),
            "ended": ((message["about"] or {}).get("state") or "").replace("_", " "),
        }
        for message in reversed(content.get("messages", []))
    ]


def _in_words(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tool steps with names for people."""
    names = ("name", "error_code")
    return [{**step, **{n: (step[n] or "").replace("_", " ") for n in names}} for step in steps]


def _look(message: dict[str, Any], turn: dict[str, Any] | None) -> str:
    """Return what a message looks like; `look` in thread.js says the same."""
    if message["state"] == "streaming" and turn is not None:
        return "stopping" if turn["cancel_requested"] else str(turn["state"])
    if message["state"] == "failed" and message["error_code"] in CUT_CODES:
        return "cut"
    return str(message["state"])


def _snapshot(request: HttpRequest, conversation_id: str) -> projection.Snapshot:
    found = projection.snapshot(_id(conversation_id), _person(request))
    if found is None:
        raise Http404
    return found


def _id(text: str) -> int:
    value = parse_id(text)
    if value is None:
        raise Http404
    return value


def _person(request: HttpRequest) -> int:
    return cast(int, request.user.pk)
