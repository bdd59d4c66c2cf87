"""Runtimes, real and made up, for the tests of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.recovery.parcels import ParcelRecovery, parcel_tables
from tests.support.processes import RuntimeProcess

StartRuntime = Callable[..., RuntimeProcess]


@pytest.fixture
def start_runtime(
    process_environment: dict[str, str], tmp_path: Path
) -> Iterator[StartRuntime]:
    """Return a function that starts a real runtime process; all are gone after the test."""
    started: list[RuntimeProcess] = []

    def start(role: str = "worker", **settings: str) -> RuntimeProcess:
        process = RuntimeProcess(
            environment={**process_environment, **settings},
            log=tmp_path / f"runtime-{len(started)}.log",
            role=role,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


@pytest.fixture
def parcels(transactional_db: None) -> Iterator[None]:
    """Tables of parcels, a kind of row that exists for these tests alone."""
    with parcel_tables():
        yield


@pytest.fixture
def recovery(parcels: None) -> ParcelRecovery:
    """The recovery of parcels."""
    return ParcelRecovery()
