"""On whose behalf a connection is open, and whether it still may be.

A person is known by the session cookie of the page or by a bearer token. Both can be taken back
while a WebSocket is open: the live view asks again at every slow poll.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from django.conf import settings
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
    get_user_model,
)
from django.contrib.sessions.models import Session
from django.db.models.functions import Now
from django.http import parse_cookie
from django.utils.crypto import constant_time_compare

from turns.models import ApiToken
from turns.tokens import find_token

BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True)
class Credential:
    """Proof of who somebody is. `password` is their password's hash when it was shown."""

    user_id: int
    password: str
    session_key: str | None = None
    token_id: int | None = None


def of_bearer(authorization: str) -> Credential | None:
    """Return whose token the header holds, None when it is not a valid one."""
    if not authorization.lower().startswith(BEARER):
        return None
    token = find_token(authorization[len(BEARER) :].strip())
    if token is None:
        return None
    return Credential(token.user_id, token.user.password, token_id=token.pk)


def of_session(session_key: str) -> Credential | None:
    """Return who is signed in under a session, None when nobody is."""
    if not (session_key.isascii() and session_key.isalnum()):
        return None
    session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    if BACKEND_SESSION_KEY not in session:
        return None
    people = get_user_model().objects.filter(is_active=True)
    user = people.filter(pk=session.get(SESSION_KEY)).first()
    if user is None:
        return None
    shown = session.get(HASH_SESSION_KEY, "")
    # under today's key, or one it was rotated from
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    if not any(constant_time_compare(shown, one) for one in hashes):
        return None
    return Credential(user.pk, user.password, session_key=session_key)


def of_headers(headers: Iterable[tuple[bytes, bytes]]) -> Credential | None:
    """Return who opens a connection with these headers. A bearer token goes before a cookie."""
    cookies = []
    for name, value in headers:
        if name == b"authorization":
            return of_bearer(value.decode("latin-1"))
        if name == b"cookie":
            cookies.append(value.decode("latin-1"))
    # Read as Django reads them for HTTP: whatever else shares the host's name sets cookies too,
    # and the standard library gives up on all of them at the first it does not like.
    session_key = parse_cookie("; ".join(cookies)).get(settings.SESSION_COOKIE_NAME)
    return of_session(session_key) if session_key else None


def still_valid(shown: Iterable[Credential]) -> set[Credential]:
    """Return those that are not revoked, signed out, expired or of a changed password."""
    asked = set(shown)
    people = get_user_model().objects.filter(pk__in={c.user_id for c in asked}, is_active=True)
    passwords = dict(people.values_list("pk", "password"))
    sessions = Session.objects.filter(
        pk__in={c.session_key for c in asked if c.session_key}, expire_date__gt=Now()
    )
    tokens = ApiToken.objects.filter(
        pk__in={c.token_id for c in asked if c.token_id}, revoked_at=None
    )
    keys = set(sessions.values_list("pk", flat=True))
    token_ids = set(tokens.values_list("pk", flat=True))
    return {
        c
        for c in asked
        if passwords.get(c.user_id) == c.password
        and (c.session_key in keys if c.session_key else c.token_id in token_ids)
    }
