"""A turn that ended while its owner asked after a lost commit starts nothing more."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import OperationalError

from recovery.errors import ErrorCode, StaleFence
from recovery.executor import in_thread
from tests import factories as make
from tests.support.settled import assert_settled
from turns import transitions
from turns.confirmed import confirmed
from turns.models import ProviderStep

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_request_whose_turn_ended_meanwhile_is_not_sent() -> None:
    turn = await in_thread(make.TurnFactory.create, running=True)
    fence, facts = make.fence_of(turn), make.request_facts()
    lost = False

    def start() -> ProviderStep:
        nonlocal lost
        step = transitions.capture_receipt(fence, facts)
        if not lost:
            lost = True
            transitions.interrupt_own_turns([fence], ErrorCode.RUNTIME_STOPPED)
            raise OperationalError("the answer to the commit was lost")
        return step

    with pytest.raises(StaleFence):
        await confirmed(start, partial(transitions.provider_step_at, fence, 1))
    await in_thread(assert_settled, turn, "interrupted", code="runtime_stopped")
