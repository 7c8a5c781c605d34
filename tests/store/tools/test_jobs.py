"""Work shared out to processes."""

import os
from collections.abc import Callable

import pytest

from cometmq.store.tools.verify import ALONE_BYTES, Jobs, process_count


def doubled(shared: int, piece: int, progress: Callable[[int], None]) -> tuple[int, int]:
    progress(10)
    return shared + piece * 2, os.getpid()


def failing(_shared: int, piece: int, _progress: Callable[[int], None]) -> None:
    raise ValueError(f"piece {piece}")


@pytest.mark.parametrize("processes", [1, 2])
def test_every_piece_is_worked_on(processes: int) -> None:
    told: list[int] = []
    with Jobs(100, processes, told.append) as jobs:
        found = list(jobs.run(doubled, range(6)))
        again = list(jobs.run(doubled, [50]))
    assert sorted(number for number, _ in found) == [100, 102, 104, 106, 108, 110]
    assert again[0][0] == 200
    assert sum(told) == 70
    assert ({pid for _, pid in found} == {os.getpid()}) is (processes == 1)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failure_is_the_caller_s(processes: int) -> None:
    with Jobs(0, processes, lambda _: None) as jobs, pytest.raises(ValueError, match="piece"):
        list(jobs.run(failing, [1]))


def test_how_many_processes() -> None:
    assert process_count(8, ALONE_BYTES - 1, 100) == 1
    assert process_count(8, ALONE_BYTES, 100) == 8
    assert process_count(8, ALONE_BYTES, 3) == 3
    assert process_count(0, ALONE_BYTES, 100) == len(os.sched_getaffinity(0))
    assert process_count(0, ALONE_BYTES, 0) == 1
