"""Threads of a simulated process: each job runs whole on the loop, some time after its
submission."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, cast

from tests.simulation.faults.threads import JobFuture, SteppedExecutor, SteppedThreads

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from random import Random

    from tests.simulation.cluster.loop import Process, SimLoop

#: Delays of a job in microseconds: most are short.
_DELAYS_US: Final = (20, 50, 100, 200, 500, 2_000, 20_000)
_WEIGHTS: Final = tuple(accumulate((20, 20, 20, 20, 10, 5, 1)))


class LoopThreads(SteppedThreads):
    """All threads of one process; jobs of different executors run in any order."""

    def __init__(self, loop: SimLoop, process: Process, chance: Random) -> None:
        super().__init__(chance, split=0)
        self.loop = loop
        self.process = process
        process.executor = self.executor(4)
        process.on_end.append(self.abandon)

    def executor(self, count: int) -> SteppedExecutor:
        """Return an executor with ``count`` threads."""
        made = _LoopExecutor(self, count)
        self._executors.append(made)
        return made

    def run_soon(self) -> None:
        """Schedule one more job, after a delay."""
        delay_us = self._chance.choices(_DELAYS_US, cum_weights=_WEIGHTS)[0]
        self.loop.call_at_us(self.loop.now_us + delay_us, self.step, context=self.process.context)


class _LoopFuture(asyncio.Future[Any]):
    """A :class:`JobFuture` that is also the loop's own future.

    There is no other thread to wait for, and code that waits on the loop needs no second future.
    """

    def __init__(self, finish: Callable[[JobFuture], None], loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self._finish = finish

    def set_running_or_notify_cancel(self) -> bool:
        """Return False if cancelled; see :class:`concurrent.futures.Future`."""
        return not self.cancelled()

    def result(self, timeout: float | None = None) -> Any:
        """Run the job if needed, and return its result; see :class:`JobFuture`."""
        self._finish(cast("JobFuture", self))
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Run the job if needed, and return its exception; see :class:`JobFuture`."""
        self._finish(cast("JobFuture", self))
        return super().exception()


class _LoopExecutor(SteppedExecutor):
    def __init__(self, threads: LoopThreads, count: int) -> None:
        super().__init__(threads, count)
        self._threads_of_process = threads

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self._threads_of_process.run_soon()
        return future

    def _future(self) -> JobFuture:
        threads = self._threads_of_process
        return cast("JobFuture", _LoopFuture(threads.finish, threads.loop))
