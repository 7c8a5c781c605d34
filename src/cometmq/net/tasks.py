"""Background tasks with an owner: the only module that creates tasks.

A task that is never awaited loses its exception and may be collected while it runs. Every task here
has a name, is referenced until it ends, reports its failure in one log line, and is cancelled and
awaited when its owner closes. A watchdog receives the time for which each step of a task blocked
the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.eventloop import Watchdog

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Pause before a failed task of :meth:`Tasks.keep` is started again.
RESTART_MS: Final = 1_000


class Tasks:
    """Tasks of one owner; ``watchdog`` receives the duration of their steps, by task name."""

    __slots__ = ("_closed", "_running", "_watchdog")

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog
        self._running: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start ``coro``. Its failure is logged under ``name``; a caller may await the task too.

        After :meth:`close` the coroutine is not started and the returned task is cancelled.
        """
        if self._watchdog is not None:
            coro = _Watched(coro, name, self._watchdog)
        task = asyncio.get_running_loop().create_task(coro, name=name)
        if self._closed:
            task.cancel()
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def keep(
        self, make: Callable[[], Coroutine[Any, Any, None]], *, name: str, clock: Clock
    ) -> None:
        """Run a coroutine that should never end, and start it again when it fails.

        A single failure must not end a background job.
        """
        self.spawn(_kept(make, name, clock), name=name)

    async def close(self, *, spared: asyncio.Task[Any] | None = None) -> None:
        """Cancel all running tasks and wait until they have ended.

        The calling task is not cancelled, nor is ``spared``, a task that waits for the caller.
        """
        self._closed = True
        but = (asyncio.current_task(), spared)
        # Leave out tasks that are done but still listed: from Python 3.12 on, gather does not yield
        # for them, so the loop would never get the turn that removes them.
        while running := [each for each in self._running if not each.done() and each not in but]:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed name=%s error=%r", task.get_name(), error, exc_info=error)


async def ended(task: asyncio.Future[Any]) -> None:
    """Wait until a task has ended, with any outcome.

    Cancelling the caller does not cancel the task. This is ``asyncio.wait`` for a single task, at
    half its cost.
    """
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(tell)
    try:
        await waiter
    finally:
        task.remove_done_callback(tell)


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all calls, as ``asyncio.gather`` does, but without a task for one."""
    if len(calls) > 1:
        return list(await asyncio.gather(*calls))
    return [await call for call in calls]


class _Watched(Coroutine[Any, Any, T]):
    """Coroutine that reports the duration of each step to a watchdog."""

    __slots__ = ("_coro", "_name", "_watchdog")

    def __init__(self, coro: Coroutine[Any, Any, T], name: str, watchdog: Watchdog) -> None:
        self._coro = coro
        self._name = name
        self._watchdog = watchdog

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coro.__await__()

    def send(self, value: Any, /) -> Any:
        now_ns = self._watchdog.clock.monotonic_ns
        begin_ns = now_ns()
        try:
            return self._coro.send(value)
        finally:
            self._watchdog.turn(self._name, now_ns() - begin_ns)

    def throw(self, *error: Any) -> Any:
        return self._coro.throw(*error)

    def close(self) -> None:
        self._coro.close()


async def _kept(make: Callable[[], Coroutine[Any, Any, None]], name: str, clock: Clock) -> None:
    while True:
        try:
            await make()
        except Exception:
            log.exception("task failed and is restarted name=%s", name)
            await clock.sleep_ms(RESTART_MS)
        else:
            return
