from __future__ import annotations

import pytest


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The hints that would have gone to the broker."""
    given: list[int] = []
    monkeypatch.setattr("work.recovery.dispatch_job", given.append)
    return given
