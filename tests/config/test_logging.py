from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest
import structlog

SECRET = "what the user wrote"


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_keeps_its_allow_listed_keys_and_loses_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    structlog.get_logger().info(
        "turn.interrupted",
        turn_id=7,
        error_code="runtime_lost",
        owner=UUID(int=1),
        text=SECRET,
        prompt=SECRET,
    )
    (line,) = logged(capsys)
    assert (line["event"], line["turn_id"], line["error_code"]) == (
        "turn.interrupted",
        7,
        "runtime_lost",
    )
    assert line["owner"] == str(UUID(int=1))
    assert SECRET not in json.dumps(line)


def test_values_are_short_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.get_logger().info("sweep.failed", reason="a\nb\x00" + "x" * 500, state=object())
    (line,) = logged(capsys)
    assert line["reason"].startswith("abx")
    assert len(line["reason"]) <= 200
    assert line["state"] == "object"


def test_an_exception_becomes_its_class_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise RuntimeError(SECRET) from error
    except RuntimeError:
        structlog.get_logger().exception("tool.failed")
    (line,) = logged(capsys)
    assert line["exception"] == "builtins.RuntimeError < builtins.ValueError"
    assert "test_logging.py" in line["location"]
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize("name", ["django.request", "celery.app.trace", "uvicorn.error", "x"])
def test_a_librarys_record_keeps_its_template_and_loses_its_arguments(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    logging.getLogger(name).error("Task %s raised: %s", 7, SECRET)
    (line,) = logged(capsys)
    assert line["template"] == "Task %s raised: %s"
    assert line["logger"] == name
    assert SECRET not in json.dumps(line)


def test_who_is_told_to_come_back_later_is_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for status in (503, 500):
        told = {"status_code": status}
        logging.getLogger("django.request").error("%s: %s", "told", SECRET, extra=told)
    later, broken = logged(capsys)
    assert (later["level"], later["status"]) == ("warning", 503)
    assert (broken["level"], broken["status"]) == ("error", 500)


def test_a_message_without_arguments_may_hold_anything_and_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger("library").error(f"could not store {SECRET}")  # noqa: G004
    (line,) = logged(capsys)
    assert line["template"] is None
    assert line["location"].startswith("test_logging:")
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize(
    "failing",
    [
        f"raise ValueError({SECRET!r})",
        f"import threading\ndef f(): raise ValueError({SECRET!r})\n"
        "t = threading.Thread(target=f); t.start(); t.join()",
    ],
    ids=["main thread", "other thread"],
)
def test_an_uncaught_exception_of_a_contained_process_does_not_print_its_message(
    failing: str,
) -> None:
    program = (
        "import django; django.setup()\n"
        "from config.logging import contain_tracebacks; contain_tracebacks()\n" + failing
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    (line,) = [json.loads(text) for text in done.stderr.splitlines()]
    assert line["event"] == "process.uncaught"
    assert line["exception"] == "builtins.ValueError"
    assert SECRET not in done.stderr + done.stdout
