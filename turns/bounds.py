"""Limits of conversations and text turns (design section 13), with units and consequences.

They are applied where data enters and again by the database.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024

# Refused at the edge with `message_too_long`.
USER_MESSAGE_MAX_BYTES: Final = 8_000
# The turn ends failed with `assistant_message_limit_reached`; the text stays, cut at the bound.
ASSISTANT_TEXT_MAX_BYTES: Final = 65_536
MESSAGE_ROW_MAX_BYTES: Final = 1_048_576
TITLE_MAX_CHARS: Final = 200
CLIENT_KEY_MAX_CHARS: Final = 200
CONVERSATIONS_PER_OWNER: Final = 10_000

# What a provider is sent: the newest messages that fit, whole call and result pairs only.
HISTORY_MAX_MESSAGES: Final = 32
HISTORY_MAX_BYTES: Final = 96 * KIB

# Refused with `rate_limited`.
TURNS_PER_WINDOW: Final = 50
TURN_WINDOW_SECONDS: Final = 60
ACTIVE_TURNS_PER_OWNER: Final = 20

# The clock of a turn starts at its claim; before that the queue deadline counts.
TURN_WALL_CLOCK_SECONDS: Final = 600
QUEUE_DEADLINE_SECONDS: Final = 300
PROVIDER_IDLE_SECONDS: Final = 120
PROVIDER_CONNECT_SECONDS: Final = 10

# Past the limit a call is stored failed and one last request without tools asks for a report;
# the hard stop ends the turn whatever the model does.
TOOL_CALLS_PER_TURN: Final = 16
TOOL_CALLS_HARD_STOP: Final = 32
PROVIDER_STEPS_PER_TURN: Final = 32

SSE_LINE_MAX_BYTES: Final = 256 * KIB
SSE_EVENT_MAX_BYTES: Final = 256 * KIB
TOOL_ARGUMENTS_MAX_BYTES: Final = 64 * KIB
RESPONSE_MAX_BYTES: Final = 8 * KIB * KIB
TOOL_RESULT_MAX_BYTES: Final = 64 * KIB
TOOL_TIMEOUT_SECONDS: Final = 120
PROVIDER_ID_MAX_BYTES: Final = 512
TOOL_NAME_MAX_BYTES: Final = 128
MODEL_NAME_MAX_CHARS: Final = 200
USAGE_MAX_KEYS: Final = 32
USAGE_MAX_BYTES: Final = 16 * KIB
LIMITS_MAX_BYTES: Final = 4 * KIB
WEBHOOK_URL_MAX_BYTES: Final = 2_048
WEBHOOK_ADDRESSES_PER_OWNER: Final = 64
# Past them the tool call ends refused; the person must have one removed.
NOTE_MAX_BYTES: Final = 2_000
NOTES_PER_OWNER: Final = 200

# The text log: one commit a tick for all turns of a process.
FLUSH_SECONDS: Final = 0.05
CHUNK_MAX_BYTES: Final = 16 * KIB
# Held in memory while the database is away; past it the turn fails with `storage_unavailable`.
HELD_TEXT_MAX_BYTES: Final = 64 * KIB

TURNS_PER_PROCESS: Final = 500
FRAME_IN_MAX_BYTES: Final = 16 * KIB
EVENT_OUT_MAX_BYTES: Final = 64 * KIB
SLOW_POLL_SECONDS: Final = 2.0
