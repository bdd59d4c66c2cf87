"""What a person allows: bearer tokens and webhook addresses."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from recovery.constraints import at_most
from recovery.triggers import refuse_change
from turns import bounds
from turns.digests import DIGEST_CHARS


class ApiToken(models.Model):
    """A bearer token, kept as a digest: a copy of the table signs nobody in."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    digest = models.CharField(max_length=DIGEST_CHARS, unique=True)
    created_at = models.DateTimeField(db_default=Now())
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        triggers = [
            refuse_change("turns_apitoken", "identity_is_fixed", ["user_id", "digest"]),
        ]

    def __str__(self) -> str:
        return f"token {self.pk}"


class WebhookAddress(models.Model):
    """An address its owner allows the tool `webhook_post` to send to."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    url = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "webhook addresses"
        constraints = [
            models.CheckConstraint(
                condition=at_most("url", bounds.WEBHOOK_URL_MAX_BYTES),
                name="turns_webhookaddress_url_bounded",
            ),
            models.UniqueConstraint(
                fields=["owner", "url"], name="turns_webhookaddress_one_per_url"
            ),
        ]
        triggers = [
            refuse_change("turns_webhookaddress", "identity_is_fixed", ["owner_id"]),
        ]

    def __str__(self) -> str:
        return f"webhook address {self.pk}"
