"""Logs are events with allow-listed keys, so that content cannot slip into them.

Our own code logs through structlog: `log.info("turn.interrupted", turn_id=…, error_code=…)`. A
key that is not on the list is dropped. Libraries log through `logging`: of their records only
the logger, the place and the message template survive, never its arguments; of an exception
only class and place.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO
from uuid import UUID

import structlog

VALUE_MAX_CHARS: Final = 200
ITEMS_MAX: Final = 16
# Those that bring handlers of their own.
LIBRARIES: Final = frozenset({"asyncio", "celery", "channels", "django", "kombu", "uvicorn"})
CAUSES_MAX: Final = 5
UNAVAILABLE: Final = 503

# Identifiers, states, codes, counts and times: what an operator needs, and nothing a user
# wrote.
ALLOWED_KEYS: Final = frozenset(
    {
        "action", "adopted", "age_seconds", "anomalies", "attempts", "bytes", "call_count",
        "capacity", "cause", "child", "chunk_count", "claim_token", "component",
        "computer_id", "conversation_id", "count", "deadline_at", "delay_seconds", "dropped",
        "duration_ms", "error_code", "event", "event_id", "examined", "exception",
        "exit_status", "failed", "fenced", "from_state", "generation", "host_id",
        "interrupted", "items", "job_id", "kind",
        "last_seq", "late_bytes", "lease_seconds", "level", "limit", "location", "lock_key",
        "logger", "message_id", "model", "owner", "pid", "poisoned", "port", "previous",
        "reason", "redispatched", "restarts", "retry_in_seconds", "role", "row_id", "running",
        "runtime_id", "seq", "sequence", "signal", "skipped", "state", "status", "step_id",
        "subscribers", "task", "task_id", "template", "timestamp", "to_state", "tool",
        "tool_step_id", "turn_id", "user_id", "version",
    }
)  # fmt: skip
_PLAIN: Final = re.compile(r"[\w .,:;/+@%()\[\]{}<>'\"|=!?#&*-]*")


def location(trace: TracebackType | None) -> str:
    """Return `file:line in function` of the innermost frame, or an empty string."""
    frames = traceback.extract_tb(trace)
    if not frames:
        return ""
    last = frames[-1]
    return f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno} in {last.name}"


def describe(error: BaseException) -> str:
    """Return the classes of `error` and its causes, outermost first; never their messages."""
    names: list[str] = []
    current: BaseException | None = error
    while current is not None and len(names) < CAUSES_MAX:
        names.append(f"{type(current).__module__}.{type(current).__qualname__}")
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return " < ".join(names)


def safe_exception(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace `exc_info` by the exception's classes and the place where it was raised."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["exception"] = describe(error)
        event["location"] = location(error.__traceback__)
    return event


def allow_listed(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> Mapping[str, Any]:
    """Keep the keys on the list, and of their values only plain, short ones."""
    return {key: _bounded(value) for key, value in event.items() if key in ALLOWED_KEYS}


def _bounded(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, UUID | datetime.datetime):
        return str(value)
    if isinstance(value, str):
        text = str(value)[:VALUE_MAX_CHARS]
        return text if _PLAIN.fullmatch(text) else "".join(_PLAIN.findall(text))
    if isinstance(value, list | tuple) and len(value) <= ITEMS_MAX:
        return [_bounded(item) for item in value]
    return type(value).__qualname__


class _Stderr:
    """Standard error as it is now: tests and daemons replace it after start."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def render(_logger: object, _method: str, event: Mapping[str, Any]) -> str:
    """Return one line of JSON, the event first."""
    first = {"timestamp": event.get("timestamp"), "level": event.get("level")}
    return json.dumps({**first, "event": event.get("event"), **event})


class SafeHandler(logging.Handler):
    """Turns a library's record into an event without the arguments of its message."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's logger, place, template, HTTP status and exception class."""
        try:
            status = getattr(record, "status_code", None)
            # who is told to come back later was answered as meant
            level = logging.WARNING if status == UNAVAILABLE else record.levelno
            fields: dict[str, Any] = {
                "logger": record.name,
                "location": f"{record.module}:{record.lineno}",
                # Without arguments the text may have been put together from anything.
                "template": str(record.msg) if record.args else None,
                "exc_info": record.exc_info,
            }
            if status is not None:
                fields["status"] = status
            log = structlog.get_logger()
            log.log(max(level, logging.DEBUG), "library.log", **fields)
        except Exception:  # noqa: BLE001 - a log line must never end its caller
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say that a record was lost; the standard handler would print its arguments."""
        sys.stderr.write(f'{{"event": "log.lost", "logger": "{record.name}"}}\n')


def _uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    structlog.get_logger().error(
        "process.uncaught",
        exc_info=(kind, error, trace),
    )


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def contain_tracebacks() -> None:
    """Make uncaught exceptions of this process events too: their messages may hold content.

    For long-running processes. Commands keep Python's traceback, which their operator sees
    alone.
    """
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def configure(options: Mapping[str, Any]) -> None:
    """Route every logger of the process through the allow-list. Called by Django at set-up."""
    level = logging.getLevelNamesMapping()[str(options.get("level", "INFO")).upper()]
    stream: TextIO = _Stderr()  # type: ignore[assignment]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            safe_exception,
            allow_listed,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, SafeHandler | logging.StreamHandler) and (
            type(handler).__module__.split(".")[0] in {"logging", "config"}
        ):
            root.removeHandler(handler)
    root.addHandler(SafeHandler())
    root.setLevel(max(level, logging.INFO))
    for name in list(logging.Logger.manager.loggerDict):
        logger = logging.getLogger(name)
        if name.split(".")[0] in {
            "django",
            "celery",
            "kombu",
            "uvicorn",
            "asyncio",
            "channels",
            "daphne",
        }:
            logger.handlers = []
            logger.propagate = True
    # Every request is a line otherwise, with its path and its address.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("django.request").setLevel(logging.ERROR)
    # Every hint and every beat is several lines otherwise. What matters, our events say.
    for name in ("celery", "kombu", "uvicorn", "uvicorn.error", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=False)
