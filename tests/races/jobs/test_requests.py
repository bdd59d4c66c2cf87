"""Requests of one job that its owner makes from two threads at the same moment."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from recovery.errors import IllegalTransition
from tests import factories as make
from tests.factories import fence_of
from tests.support.rivals import Rival, gate
from work.models import WorkProviderStep
from work.transitions import start_provider_step

pytestmark = pytest.mark.django_db(transaction=True)

CONVERSATION: Final = "SELECT FROM turns_conversation WHERE id = %s FOR UPDATE"


@pytest.mark.parametrize("earlier", [0, 1])
def test_of_two_requests_that_are_begun_at_once_one_is_made(
    earlier: int, database_url: str
) -> None:
    job = make.WorkJobFactory.create(running=True)
    make.WorkProviderStepFactory.create_batch(earlier, job=job, completed=True)
    start = partial(start_provider_step, fence_of(job), make.request_facts())
    with gate(database_url, CONVERSATION, job.conversation_id) as held:
        first = Rival(start).until_it_waits()
        second = Rival(start).until_it_waits()
        held.open()

    begun = first.result()
    assert (begun.sequence, begun.state) == (earlier + 1, "started")
    assert isinstance(second.error(), IllegalTransition)
    assert WorkProviderStep.objects.get(job=job, state="started") == begun
