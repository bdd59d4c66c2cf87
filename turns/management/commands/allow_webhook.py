"""`manage.py allow_webhook USER URL`: let the tool `webhook_post` send there."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from recovery.commands import EXIT_USAGE, OperatorCommand, person_named
from turns import bounds
from turns.models import WebhookAddress
from turns.transitions.conversations import is_storable, lock_person


class Command(OperatorCommand):
    """Keeps the list of addresses a person's turns and jobs may send to."""

    help = (
        "Allow the tool webhook_post, in the turns and jobs of USER, to POST to exactly URL "
        f"(at most {bounds.WEBHOOK_ADDRESSES_PER_OWNER} addresses a person)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take who and where to."""
        parser.add_argument("user", metavar="USER", help="the username of an existing account")
        parser.add_argument("url", metavar="URL", help="an http:// or https:// address")
        parser.add_argument("--remove", action="store_true", help="take the address back")

    def handle(self, *_args: object, **options: Any) -> None:
        """Add or remove the address; doing it twice changes nothing more."""
        url: str = options["url"]
        if not _is_address(url):
            raise CommandError(
                "URL must be an http:// or https:// address", returncode=EXIT_USAGE
            )
        owner_id = person_named(options["user"])
        if options["remove"]:
            count, _ = WebhookAddress.objects.filter(owner_id=owner_id, url=url).delete()
            self.stdout.write("Removed." if count else "It was not on the list.")
        else:
            added = _allow(owner_id, url)
            self.stdout.write("Allowed." if added else "It was allowed already.")


@transaction.atomic(durable=True)
def _allow(owner_id: int, url: str) -> bool:
    lock_person(owner_id)
    own = WebhookAddress.objects.filter(owner_id=owner_id)
    if own.filter(url=url).exists():
        return False
    if own.count() >= bounds.WEBHOOK_ADDRESSES_PER_OWNER:
        raise CommandError(f"at most {bounds.WEBHOOK_ADDRESSES_PER_OWNER} addresses a person")
    WebhookAddress.objects.create(owner_id=owner_id, url=url)
    return True


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return (
        parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and is_storable(url)
        and len(url.encode()) <= bounds.WEBHOOK_URL_MAX_BYTES
    )
