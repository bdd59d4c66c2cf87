"""Bearer tokens: shown once, kept as a digest, so that a copy of the table signs nobody in."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from turns.digests import digest
from turns.models import ApiToken

# Named, so that a leaked one is recognised where secrets are searched for.
PREFIX: Final = "holdfast_"
SECRET_BYTES: Final = 32
TOKEN_MAX_CHARS: Final = 128
# `last_used_at` is for people: a write for each request would be a high price for it.
USE_NOTED_AFTER: Final = timedelta(minutes=1)


@transaction.atomic(durable=True)
def create_token(user_id: int) -> str:
    """Return a new token of this person. Nothing can show it again."""
    token = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    ApiToken.objects.create(user_id=user_id, digest=digest(token))
    return token


def find_token(token: str) -> ApiToken | None:
    """Return the valid token of somebody who may sign in; None for every other string."""
    if not token.startswith(PREFIX) or len(token) > TOKEN_MAX_CHARS or not token.isascii():
        return None
    unnoted = Q(last_used_at=None) | Q(last_used_at__lt=Now() - USE_NOTED_AFTER)
    found = (
        ApiToken.objects.select_related("user")
        .filter(digest=digest(token), revoked_at=None, user__is_active=True)
        .annotate(unnoted=unnoted)
        .first()
    )
    # asked in the same statement: hundreds of pages that come back at once do not write
    if found is not None and found.unnoted:
        ApiToken.objects.filter(unnoted, pk=found.pk).update(last_used_at=Now())
    return found
