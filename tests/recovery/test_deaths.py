"""Dead processes are buried, once and soon; living ones never are."""

from __future__ import annotations

import pytest

from recovery import liveness
from recovery.models import Runtime
from tests.recovery.conftest import StartRuntime, watch_database

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_killed_process_is_buried_as_lost(start_runtime: StartRuntime) -> None:
    runtime = start_runtime()
    runtime_id = runtime.wait_until_registered()
    runtime.kill()
    watch_database()

    assert liveness.bury().buried == (runtime_id,)

    buried = Runtime.objects.get()
    assert buried.stop_reason == Runtime.StopReason.RUNTIME_LOST
    assert buried.stopped_at is not None
    assert liveness.bury().buried == ()
