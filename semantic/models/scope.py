"""What is derived is of one message, in its conversation, and of that conversation's person.

A composite foreign key to messages (migration 0003) keeps it with its message. A second one to
conversations would take their locks last, at the commit, where whoever removes a conversation
takes them first; and neither a message's conversation nor a conversation's owner ever changes.
So the rest is proved once, when the row is written.
"""

from __future__ import annotations

import pgtrigger
from django.conf import settings
from django.db import models

from recovery.triggers import refuse
from turns.models import Conversation, Message


class OfMessage(models.Model):
    """What every row that is derived from a message says of it.

    Removing a message takes them along by the database's own rules (`messages.py`); Django's
    collector would lock in another order.
    """

    message = models.ForeignKey(
        Message,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    conversation = models.ForeignKey(
        Conversation,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    person = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )

    class Meta:
        abstract = True


def is_of_its_message(table: str, said: str, *, beside: str = "") -> pgtrigger.Trigger:
    """Return the statement trigger that refuses rows whose message, conversation and person do
    not belong together, or for which the SQL `said`, of the message `m`, is not true.

    `beside` joins what else it speaks of.
    """
    return pgtrigger.Trigger(
        name="is_of_its_message",
        level=pgtrigger.Statement,
        when=pgtrigger.After,
        operation=pgtrigger.Insert,
        referencing=pgtrigger.Referencing(new="fresh"),  # type: ignore[no-untyped-call]
        func=f"""
            IF EXISTS (
                SELECT FROM fresh AS f WHERE NOT EXISTS (
                    SELECT FROM turns_message m
                        JOIN turns_conversation c ON c.id = m.conversation_id {beside}
                    WHERE m.id = f.message_id AND m.conversation_id = f.conversation_id
                        AND c.owner_id = f.person_id AND {said}
                )
            ) THEN {refuse(f"{table}_is_of_its_message")} END IF;
            RETURN NULL;
        """,  # noqa: S608  names from our own models, at migration time
    )


def is_kept(table: str, *, beside: str = "") -> pgtrigger.Trigger:
    """Return the statement trigger that refuses to remove rows whose message is still there.

    `beside` joins what else must be so. Planned each time, for as many rows as go.
    """
    return pgtrigger.Trigger(
        name="is_kept",
        level=pgtrigger.Statement,
        when=pgtrigger.After,
        operation=pgtrigger.Delete,
        referencing=pgtrigger.Referencing(old="gone"),  # type: ignore[no-untyped-call]
        declare=[("wanted", "boolean")],
        func=f"""
            EXECUTE $check$
                SELECT EXISTS (
                    SELECT FROM gone f JOIN turns_message m ON m.id = f.message_id {beside}
                )
            $check$ INTO wanted;
            IF wanted THEN {refuse(f"{table}_is_kept")} END IF;
            RETURN NULL;
        """,  # noqa: S608  names from our own models, at migration time
    )
