"""A program that multiplies is held by the kernel where a group may be made, for root too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.work.coding.running import Ground
from work.coding.orders import End
from work.coding.taskgroup import TaskGroup


def _groups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob("**/holdfast-*"))


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "job")


def test_a_program_never_has_more_processes_than_its_group_allows(ground: Ground) -> None:
    """A bomb of bounded size: the shell gives up at the first process it is refused."""
    group = TaskGroup.made(40)
    group.remove()
    ended = ground.run(
        "n=0; while [ $n -lt 200 ]; do sleep 1000 & n=$((n+1)); done; wait", tree_processes=40
    )
    assert ended.end == End.PROCESSES
    if group.is_there:
        assert b"fork" in ended.output.head + ended.output.tail
    assert ended.survivors == 0
    assert ground.running() == []


def test_a_group_that_was_made_can_be_removed() -> None:
    group = TaskGroup.made(40)
    made = {path for path in _groups() if path.name.endswith(f"-{os.getpid()}")}
    assert bool(made) == group.is_there
    group.remove()
    assert not any(path.exists() for path in made)
