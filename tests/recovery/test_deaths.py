"""Real processes: the dead are buried, once and soon; the living never are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

import psycopg
import pytest
from django.db import connection

from recovery import liveness
from recovery.models import Pulse, Runtime
from tests.recovery.conftest import StartRuntime
from tests.support.processes import RuntimeProcess
from tests.support.runtimes import runtime_row, stop_reason, watch_database
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

# A pass a second and a grace of a second; a busy machine has until the lease would tell too.
BURIAL_BOUND_SECONDS = 15.0


def living() -> set[UUID]:
    return set(Runtime.objects.living().values_list("pk", flat=True))


def test_a_killed_process_is_buried_as_lost_by_one_look_and_another(
    start_runtime: StartRuntime,
) -> None:
    runtime = start_runtime()
    runtime_id = runtime.wait_until_registered()
    runtime.kill()
    watch_database()

    assert liveness.bury().buried == (runtime_id,)
    assert stop_reason(runtime_id) == "runtime_lost"
    assert liveness.bury().buried == ()


def test_the_sweep_threads_of_others_bury_a_killed_process_once_and_soon(
    start_runtime: StartRuntime,
) -> None:
    runtimes = [start_runtime("web"), start_runtime(), start_runtime()]
    ids = [runtime.wait_until_registered() for runtime in runtimes]
    watch_database()
    for runtime in runtimes:
        runtime.say("sweep")
        runtime.expect("sweeping")
    victim, victim_id = runtimes.pop(), ids.pop()
    victim.kill()

    wait_until(
        lambda: stop_reason(victim_id) == "runtime_lost",
        "the victim is buried as lost",
        seconds=BURIAL_BOUND_SECONDS,
    )

    assert living() == set(ids)
    # it is said after the commit
    wait_until(lambda: burials(runtimes) > 0, "the burial is logged")
    # and by nobody else in the pass that follows
    swept_at = Pulse.objects.get().swept_at
    wait_until(lambda: Pulse.objects.get().swept_at != swept_at, "another sweep")
    assert burials(runtimes) == 1


def burials(runtimes: Sequence[RuntimeProcess]) -> int:
    """Return how many of them the logs tell of."""
    return sum(runtime.log.read_text().count("runtime.buried") for runtime in runtimes)


def test_a_stopped_process_ends_its_runtime_itself(start_runtime: StartRuntime) -> None:
    runtime = start_runtime()
    runtime_id = runtime.wait_until_registered()
    runtime.say("stop")
    runtime.expect("stopped")
    assert runtime.wait() == 0
    assert stop_reason(runtime_id) == "runtime_stopped"


def test_a_runtime_whose_session_is_cut_stays_alive_under_a_new_key(
    start_runtime: StartRuntime,
) -> None:
    runtime = start_runtime()
    runtime_id = runtime.wait_until_registered()
    watch_database()
    for _ in range(5):
        before = Runtime.objects.get(pk=runtime_id)
        _cut_session(before.lock_backend_pid)
        liveness.bury()
        after = _rekeyed(before)
        assert after.stopped_at is None
        assert after.lock_key != before.lock_key
    assert not runtime.heard("fenced")


def _cut_session(backend_pid: int | None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [backend_pid])


def _rekeyed(before: Runtime) -> Runtime:
    def other_key() -> bool:
        return Runtime.objects.get(pk=before.pk).lock_key != before.lock_key

    wait_until(other_key, "the session is opened anew")
    return Runtime.objects.get(pk=before.pk)


def test_a_process_frozen_for_less_than_its_lease_stays_alive(
    start_runtime: StartRuntime,
) -> None:
    lease = 12.0
    runtime = start_runtime(HOLDFAST_LEASE_SECONDS=str(lease))
    runtime_id = runtime.wait_until_registered()
    watch_database()
    runtime.freeze()
    frozen_at = Runtime.objects.get(pk=runtime_id).renewed_at
    end = time.monotonic() + lease / 4
    while time.monotonic() < end:
        assert liveness.bury().buried == ()
    runtime.thaw()
    wait_until(lambda: Runtime.objects.get(pk=runtime_id).renewed_at > frozen_at, "a renewal")
    assert stop_reason(runtime_id) == ""
    assert not runtime.heard("fenced")


def test_a_process_frozen_past_its_lease_is_buried_and_fences_itself_when_it_wakes(
    start_runtime: StartRuntime,
) -> None:
    runtime = start_runtime(HOLDFAST_LEASE_SECONDS="3")
    runtime_id = runtime.wait_until_registered()
    watch_database()
    runtime.freeze()

    wait_until(lambda: runtime_id in liveness.bury().buried, "the burial")
    assert stop_reason(runtime_id) == "lease_expired"

    runtime.thaw()
    assert runtime.expect("fenced")["id"] == str(runtime_id)
    anew = runtime.wait_until_registered()
    assert living() == {anew}
    assert stop_reason(runtime_id) == "lease_expired"


def test_a_runtime_that_registered_anew_names_all_its_sessions_by_the_new_id(
    start_runtime: StartRuntime,
) -> None:
    runtime = start_runtime()
    runtime_id = runtime.wait_until_registered()
    name = "SELECT current_setting('application_name')"
    runtime.say("ask", sql=name)
    assert str(runtime_id) in runtime.expect("answer")["row"][0]

    Runtime.objects.filter(pk=runtime_id).update(
        stopped_at=Runtime.objects.get().renewed_at, stop_reason="lease_expired"
    )
    anew = runtime.wait_until_registered()
    for _ in range(16):  # every thread of the executor, most of them twice
        runtime.say("ask", sql=name)
        assert str(anew) in runtime.expect("answer")["row"][0]


def test_a_process_whose_loop_hangs_is_not_renewed(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(HOLDFAST_LEASE_SECONDS="3")
    runtime_id = runtime.wait_until_registered()
    watch_database()
    hung_at = time.monotonic()
    runtime.say("hang", seconds=60)
    runtime.expect("hanging")

    wait_until(lambda: runtime_id in liveness.bury().buried, "the burial")

    assert time.monotonic() - hung_at > 10  # a short hang costs nothing
    assert stop_reason(runtime_id) == "lease_expired"


def test_a_tool_that_blocks_for_longer_than_the_lease_costs_nothing(
    start_runtime: StartRuntime,
) -> None:
    """Failure H08: renewal does not depend on what the work itself does."""
    runtime = start_runtime(HOLDFAST_LEASE_SECONDS="6")
    runtime_id = runtime.wait_until_registered()
    watch_database()
    runtime.say("block_tool", seconds=7)
    runtime.expect("blocking")
    while not runtime.heard("tool_done"):
        assert liveness.bury().buried == ()
    assert stop_reason(runtime_id) == ""


def test_a_process_frozen_inside_a_transaction_keeps_no_row_locked(
    start_runtime: StartRuntime, database_url: str
) -> None:
    runtime = start_runtime(HOLDFAST_LEASE_SECONDS="3")
    runtime_id = runtime.wait_until_registered()
    witness = runtime_row(lease_seconds=600)
    watch_database()
    runtime.say(
        "open_transaction",
        sql=f"SELECT FROM recovery_runtime WHERE id = '{witness.pk}' FOR UPDATE",
    )
    runtime.expect("transaction_open")
    runtime.freeze()
    wait_until(lambda: runtime_id in liveness.bury().buried, "the burial")
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '1s'")
        other.execute("SELECT FROM recovery_runtime WHERE id = %s FOR UPDATE", [witness.pk])


def test_without_locks_the_lease_alone_decides(start_runtime: StartRuntime) -> None:
    runtime = start_runtime(HOLDFAST_LIVENESS="lease", HOLDFAST_LEASE_SECONDS="4")
    runtime_id = runtime.wait_until_registered()
    watch_database()
    assert Runtime.objects.get(pk=runtime_id).lock_key is None
    runtime.kill()
    assert liveness.bury().buried == ()
    wait_until(lambda: runtime_id in liveness.bury().buried, "the burial")
    assert stop_reason(runtime_id) == "lease_expired"


@pytest.mark.parametrize("skew_seconds", [600, -600])
def test_the_clock_of_a_process_does_not_matter(
    start_runtime: StartRuntime, skew_seconds: int
) -> None:
    """Failure H72: expiry and renewal are written and read on the database's clock."""
    runtime = start_runtime(TEST_CLOCK_SKEW_SECONDS=str(skew_seconds))
    runtime_id = runtime.wait_until_registered()
    watch_database()
    assert liveness.bury().buried == ()
    row = Runtime.objects.get(pk=runtime_id)
    assert (row.lease_expires_at - row.renewed_at).total_seconds() == pytest.approx(15, abs=1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    assert abs((now - row.started_at).total_seconds()) < 60
