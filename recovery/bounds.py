"""Limits of the kernel itself, and how a bound is applied to text."""

from __future__ import annotations

from typing import Final

# design section 2 and 13; each is checked against the others in recovery/checks.py
LOCK_GRACE_SECONDS: Final = 1.0
RENEW_SECONDS: Final = 1.0
LOOP_TICK_SECONDS: Final = 0.5
LOOP_TICK_MAX_AGE_SECONDS: Final = 10.0
PULSE_SECONDS: Final = 0.8
PULSE_BROKEN_AFTER_SECONDS: Final = 3.0
DRAIN_SECONDS: Final = 20.0
ADMISSION_GRACE_SECONDS: Final = 5
DEADLINE_GRACE_SECONDS: Final = 10
# One batch is one transaction: larger ones hold locks longer, smaller ones measured 1.5x
# slower.
SWEEP_BATCH_ROWS: Final = 2_000
RECOVERY_DETAIL_MAX_BYTES: Final = 4 * 1024
FAILURE_BACKOFF_MAX_SECONDS: Final = 600
ADOPTION_ATTEMPTS: Final = 3
PLANNED_RELEASES: Final = 20
ENDED_RUNTIMES_KEPT_DAYS: Final = 7
DISPATCH_BACKOFF_SECONDS: Final = (5, 15, 45, 135)


def cut_utf8(text: str, limit_bytes: int) -> str:
    """Return the longest beginning of `text` within `limit_bytes` of UTF-8, in whole
    characters."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    return data[:limit_bytes].decode(errors="ignore")


def storable(text: str) -> str:
    """Return `text` with NUL and lone surrogates replaced by U+FFFD, so that PostgreSQL and
    UTF-8 take it.

    Surrogate pairs that arrived as two escapes are joined first.
    """
    if text.isascii():
        return text.replace("\x00", "\ufffd")
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\x00", "\ufffd")
