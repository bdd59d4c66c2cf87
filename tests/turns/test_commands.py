"""Making tokens and allowing webhooks from the command line."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tests import factories as make
from turns import bounds
from turns.digests import digest
from turns.models import ApiToken, WebhookAddress

pytestmark = pytest.mark.django_db


def output_of(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_token_is_shown_once_as_the_last_word_and_kept_as_a_digest() -> None:
    user = make.UserFactory.create()
    token = output_of("create_token", user.username).splitlines()[-1].split()[-1]

    stored = ApiToken.objects.get()
    assert (stored.user_id, stored.digest) == (user.pk, digest(token))
    assert len(token) >= 40
    assert output_of("create_token", user.username).split()[-1] != token


def test_nobody_gets_no_token() -> None:
    with pytest.raises(CommandError) as refused:
        output_of("create_token", "nobody")
    assert refused.value.returncode == 2


def test_an_address_is_allowed_once_and_can_be_taken_back() -> None:
    user = make.UserFactory.create()
    url = "https://example.test/hook"

    assert output_of("allow_webhook", user.username, url) == "Allowed.\n"
    assert output_of("allow_webhook", user.username, url) == "It was allowed already.\n"
    assert WebhookAddress.objects.get().owner_id == user.pk
    assert output_of("allow_webhook", user.username, url, "--remove") == "Removed.\n"
    assert (
        output_of("allow_webhook", user.username, url, "--remove")
        == "It was not on the list.\n"
    )


@pytest.mark.parametrize(
    "url", ["", "example.test", "ftp://example.test", "https://", "http://[", "https://é\x00"]
)
def test_what_is_no_address_is_not_allowed(url: str) -> None:
    user = make.UserFactory.create()
    with pytest.raises(CommandError) as refused:
        output_of("allow_webhook", user.username, url)
    assert refused.value.returncode == 2


def test_a_person_has_at_most_64_addresses() -> None:
    user = make.UserFactory.create()
    make.WebhookAddressFactory.create_batch(bounds.WEBHOOK_ADDRESSES_PER_OWNER, owner=user)

    with pytest.raises(CommandError):
        output_of("allow_webhook", user.username, "https://example.test/one-more")
