"""Distribution of work over a whole store to processes: one function, many pieces.

The data that every piece needs is passed to each process once. A small store is processed in this
process, which is faster than starting others.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any, Protocol, TypeVar

#: Bytes to read below which starting other processes does not pay.
ALONE_BYTES = 256 << 20
_POLL_S = 0.1

Piece = TypeVar("Piece")
Result = TypeVar("Result")

#: A function of the shared data, its piece, and a callback for the number of bytes read.
Work = Callable[[Any, Any, Callable[[int], None]], Any]


class Pool(Protocol):
    """Runs work on pieces: in the processes of this module, or elsewhere."""

    def __enter__(self) -> Pool: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, work: Work, pieces: Sequence[Any]) -> Iterator[Any]:
        """Yield the results in any order. Raises the errors of the function."""


#: Makes a pool from the shared data, a number of processes, and a callback for the number of bytes
#: read.
PoolMaker = Callable[[object, int, Callable[[int], None]], Pool]

_shared: Any = None
_counter: Any = None


def process_count(asked: int, work_bytes: int, pieces: int) -> int:
    """Return the number of processes to use; ``asked`` is 0 for one per processor."""
    if work_bytes < ALONE_BYTES:
        return 1
    return max(1, min(asked or len(os.sched_getaffinity(0)), pieces))


class Jobs:
    """A pool of processes with the data ``shared``; with one process, this one does all work."""

    def __init__(self, shared: object, processes: int, progress: Callable[[int], None]) -> None:
        self._shared = shared
        self._progress = progress
        self._counter: Any = None
        self._told = 0
        self._executor: ProcessPoolExecutor | None = None
        if processes > 1:
            # "spawn" starts fresh interpreters: a forked one would inherit threads and locks in any
            # state.
            context = multiprocessing.get_context("spawn")
            self._counter = context.Value("q", 0)
            self._executor = ProcessPoolExecutor(
                processes, context, initializer=_begin, initargs=(shared, self._counter)
            )

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(self, work: Work, pieces: Sequence[Any]) -> Iterator[Any]:
        """Yield the results in any order. Raises the errors of the function."""
        if self._executor is None:
            for piece in pieces:
                yield work(self._shared, piece, self._progress)
            return
        waiting = {self._executor.submit(_work, work, piece) for piece in pieces}
        while waiting:
            done, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
            read = self._counter.value
            self._progress(read - self._told)
            self._told = read
            for each in done:
                yield each.result()


def _begin(shared: object, counter: Any) -> None:
    global _shared, _counter
    _shared, _counter = shared, counter


def _work(work: Work, piece: object) -> Any:
    return work(_shared, piece, _count)


def _count(size_bytes: int) -> None:
    with _counter.get_lock():
        _counter.value += size_bytes
