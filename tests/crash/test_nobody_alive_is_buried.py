"""Outages, blocked tools, held interpreters: the turn goes on, its runtime is not buried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from django.db import connection

from config.embedded.postgres import Postgres
from recovery.models import RecoveryEvent, Runtime
from recovery.sweep import sweep
from tests.factories import ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, hold, send
from tests.simulators.responses_wire import Stream, answer, frames_reply, stalled, tool_calls
from tests.support import private_postgres
from tests.support.blocking_tools import RELEASE
from tests.support.private_postgres import DATABASE, answers, crash, django_on
from tests.support.turns import ask, require_terminal, text_of, wait_until_ended
from tests.support.waiting import wait_until
from tests.support.worker import Worker, WorkerStarter
from turns.models import ToolStep, Turn

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = 5.0
WITH_TOOLBOX = {"DJANGO_SETTINGS_MODULE": "tests.support.worker_settings"}


def in_three_parts() -> Reply:
    """Text before, during and after an outage."""
    stream = Stream()
    frames = [*stream.opening(), *stream.message("Once ", "upon ", "a time.")]
    return frames_reply(
        send(*frames[:5]),
        hold("away"),
        send(frames[5]),
        hold("back"),
        send(*frames[6:], stream.terminal()),
    )


def require_alive(worker: Worker) -> None:
    """Fail unless the process is still the one runtime it registered as."""
    runtime = Runtime.objects.get(pid=worker.pid)
    assert runtime.stopped_at is None
    assert "runtime.fenced" not in worker.said()
    assert not RecoveryEvent.objects.exists()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL of our own, migrated."""
    with private_postgres.private_postgres(tmp_path_factory.mktemp("private")) as server:
        yield server


@pytest.fixture
def own_database(server: Postgres, transactional_db: None) -> Iterator[Postgres]:
    """Let this process and its workers use the private server, empty."""
    with django_on(server):
        with connection.cursor() as cursor:
            cursor.execute(
                "TRUNCATE recovery_runtime, recovery_pulse, recovery_recoveryevent, auth_user "
                "CASCADE"
            )
        yield server


def restart(server: Postgres, during: Callable[[], None]) -> None:
    server.stop()
    during()
    server.start()


def crash_once(server: Postgres, during: Callable[[], None]) -> None:
    crash(server)
    during()


def outlast_the_lease(server: Postgres, during: Callable[[], None]) -> None:
    server.stop()
    during()
    end = time.monotonic() + 1.4 * LEASE_SECONDS
    wait_until(lambda: time.monotonic() > end, "the lease has run out")
    server.start()


@pytest.mark.parametrize("disturb", [restart, crash_once, outlast_the_lease])
def test_a_turn_goes_on_when_the_database_goes_away_in_mid_stream(
    own_database: Postgres,
    start_worker: WorkerStarter,
    model: Simulator,
    disturb: Callable[[Postgres, Callable[[], None]], None],
) -> None:
    model.script(in_three_parts())
    worker = start_worker(
        DATABASE_URL=own_database.url(DATABASE), HOLDFAST_LEASE_SECONDS=str(LEASE_SECONDS)
    )
    turn = ask(ConversationFactory.create())
    worker.hint(turn.pk)
    wait_until(lambda: text_of(turn) == "Once ", "the first text is committed")
    connection.close()

    disturb(own_database, lambda: model.release("away"))
    wait_until(lambda: answers(own_database), "the database answers again")
    wait_until(lambda: text_of(turn) == "Once upon ", "the text of the outage is committed")
    model.release("back")
    wait_until_ended(turn)
    assert (turn.state, text_of(turn)) == ("completed", "Once upon a time.")
    require_terminal(turn)
    require_alive(worker)
    assert model.posts == 1


def test_an_answer_that_ends_while_the_database_is_away_is_kept(
    own_database: Postgres, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("Once upon a time."))
    worker = start_worker(DATABASE_URL=own_database.url(DATABASE))
    turn = ask(ConversationFactory.create())
    worker.hint(turn.pk)
    model.wait_for_gate("answer")
    wait_until(lambda: text_of(turn), "the text is committed")
    connection.close()
    own_database.stop()
    model.release("answer")
    model.wait_until_finished()
    own_database.start()
    wait_until_ended(turn)
    assert (turn.state, text_of(turn)) == ("completed", "Once upon a time.")
    require_alive(worker)


def cut_session(worker: Worker) -> None:
    """End the session that holds the worker's lock; return when it has another."""
    backend = worker.runtime.lock_backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [backend])
    wait_until(lambda: worker.runtime.lock_backend_pid != backend, "the session is replaced")


def test_cutting_the_session_that_proves_life_kills_nobody(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("Once upon"))
    worker = start_worker()
    turn = ask(ConversationFactory.create())
    worker.hint(turn.pk)
    model.wait_for_gate("answer")
    for _ in range(3):
        cut_session(worker)
        sweep()
    model.release("answer")
    wait_until_ended(turn)
    assert (turn.state, text_of(turn)) == ("completed", "Once upon")
    require_alive(worker)


def test_a_tool_that_blocks_for_longer_than_a_lease_kills_nobody_and_holds_up_nobody(
    start_worker: WorkerStarter, model: Simulator, tmp_path: Path
) -> None:
    """failure H08"""
    release = tmp_path / "release"
    model.script(
        tool_calls(("call_1", "block", "{}"), match="block"),
        answer("Meanwhile.", match="other"),
        answer("At last.", response_id="resp_2", match="released"),
    )
    worker = start_worker(
        **WITH_TOOLBOX,
        **{RELEASE: str(release)},
        HOLDFAST_LEASE_SECONDS=str(LEASE_SECONDS),
    )
    blocked = ask(ConversationFactory.create(), "block")
    worker.hint(blocked.pk)
    wait_until(
        lambda: ToolStep.objects.filter(turn=blocked, state="running").exists(), "it blocks"
    )
    other = ask(ConversationFactory.create(), "other")
    worker.hint(other.pk)
    assert wait_until_ended(other).state == "completed"

    began = worker.runtime.renewed_at

    def outlasted() -> bool:
        sweep()
        return (worker.runtime.renewed_at - began).total_seconds() > 1.4 * LEASE_SECONDS

    wait_until(outlasted, "more than a lease has passed")
    assert Turn.objects.get(pk=blocked.pk).state == "running"
    release.touch()
    assert wait_until_ended(blocked).state == "completed"
    require_alive(worker)


def test_a_long_hold_of_the_interpreter_kills_nobody(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    held_seconds = 4
    arguments = f'{{"seconds": {held_seconds}}}'
    model.script(
        tool_calls(("call_1", "hold_interpreter", arguments)), answer("Back.", response_id="r2")
    )
    worker = start_worker(**WITH_TOOLBOX, HOLDFAST_LEASE_SECONDS="8")
    turn = ask(ConversationFactory.create())
    worker.hint(turn.pk)
    wait_until(
        lambda: ToolStep.objects.filter(turn=turn, state="running").exists(), "it is held"
    )
    renewals = [worker.runtime.renewed_at]

    def ended() -> bool:
        sweep()
        if (renewed_at := worker.runtime.renewed_at) != renewals[-1]:
            renewals.append(renewed_at)
        return Turn.objects.filter(pk=turn.pk, finished_at__isnull=False).exists()

    wait_until(ended, "the turn has ended")
    wait_until(lambda: worker.runtime.renewed_at != renewals[-1], "a renewal after the hold")
    renewals.append(worker.runtime.renewed_at)
    longest = max(later - earlier for earlier, later in pairwise(renewals))
    assert longest.total_seconds() > held_seconds - 1
    wait_until_ended(turn)
    assert (turn.state, text_of(turn)) == ("completed", "Back.")
    require_alive(worker)
