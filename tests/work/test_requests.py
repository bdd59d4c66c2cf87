"""What a model is told of its job so far."""

from __future__ import annotations

import pytest

from tests import factories as make
from turns.providers.types import AssistantText
from work.requests import read

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("unseen", ["", " \n", "\u200b", "\u3164 \ufe0f"])
def test_a_response_that_showed_nothing_is_not_told(unseen: str) -> None:
    """Some services refuse a blank message."""
    job = make.WorkJobFactory.create(running=True)
    for sequence, text in enumerate(("It begins.", unseen, "It goes on."), 1):
        make.WorkProviderStepFactory.create(
            job=job, completed=True, sequence=sequence, text=text
        )
    told = read(job, 10_000).items
    assert [one.text for one in told if isinstance(one, AssistantText)] == [
        "It begins.",
        "It goes on.",
    ]
