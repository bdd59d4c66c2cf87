"""Conversations and the durable record of every text turn.

    Turn          queued -> running -> completed | failed | cancelled | interrupted
                  (queued may end directly)
    Message       streaming -> complete | failed | cancelled | interrupted
                  (a user's is born complete)
    Receipt       captured -> completed | failed | cancelled | interrupted
    ProviderStep  started -> completed | failed | cancelled | interrupted
    ToolStep      requested -> running -> succeeded | failed | refused | cancelled
                  | unavailable | interrupted

The database holds every rule said here: see each model's constraints and triggers.
"""

from turns.models.access import ApiToken, WebhookAddress
from turns.models.conversations import Conversation, Message
from turns.models.notes import Note
from turns.models.steps import ProviderStep, Receipt, TextChunk, ToolStep
from turns.models.turn import Turn

__all__ = [
    "ApiToken",
    "Conversation",
    "Message",
    "Note",
    "ProviderStep",
    "Receipt",
    "TextChunk",
    "ToolStep",
    "Turn",
    "WebhookAddress",
]
