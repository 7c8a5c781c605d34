"""Threads that run on command, one at a time, in an order drawn from a seed.

A job is a call submitted to an executor. It either runs whole, at one moment, or in a real thread
that stops at file operations and continues later, while the event loop and other jobs run in
between. Only one thread runs at a time, so a seed always produces the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from random import Random

_T = TypeVar("_T")
_PAUSE_CHANCE = 0.5


class JobAbandoned(BaseException):
    """The process that a paused job belongs to has ended."""


class JobFuture(Future[Any]):
    """A future whose job runs when a caller waits for it."""

    def __init__(self, finish: Callable[[JobFuture], None]) -> None:
        super().__init__()
        self._finish = finish

    def result(self, timeout: float | None = None) -> Any:
        """Run the job if needed, and return its result; see :class:`concurrent.futures.Future`."""
        self._finish(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Run the job if needed, and return its exception; see
        :class:`concurrent.futures.Future`."""
        self._finish(self)
        return super().exception(timeout)


class _Job:
    """One call, and its thread if it is split."""

    __slots__ = ("call", "future", "resume", "thread", "yielded")

    resume: threading.Semaphore
    yielded: threading.Semaphore

    def __init__(self, call: Callable[[], object], future: JobFuture) -> None:
        self.call = call
        self.future = future
        self.thread: threading.Thread | None = None

    def split(self) -> threading.Thread:
        """Start and return a thread for the job; :meth:`go_on` lets it run."""
        self.resume = threading.Semaphore(0)
        self.yielded = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run_split, daemon=True)
        self.thread.start()
        return self.thread

    def run(self) -> None:
        """Run to the end on the calling thread."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def run_split(self) -> None:
        """Run the job as the body of its own thread."""
        self.resume.acquire()
        try:
            self.run()
        finally:
            self.yielded.release()

    def go_on(self) -> None:
        """Let the thread run until it stops or ends."""
        self.resume.release()
        self.yielded.acquire()

    def stop(self) -> None:
        """Stop the calling thread of the job, and let the others run."""
        self.yielded.release()
        self.resume.acquire()


class SteppedExecutor(ThreadPoolExecutor):
    """Executor with at most ``count`` jobs under way. It is a ThreadPoolExecutor for asyncio's
    sake."""

    def __init__(self, threads: SteppedThreads, count: int) -> None:
        super().__init__(1)
        self._stepped = threads
        self.count = count
        self.jobs: list[_Job] = []

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Queue a job; :meth:`SteppedThreads.step` runs it."""
        future = self._future()
        self.jobs.append(_Job(partial(fn, *args, **kwargs), future))
        return future

    def _future(self) -> JobFuture:
        return JobFuture(self._stepped.finish)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Run the remaining jobs, as a thread pool does if it is waited for."""
        while wait and self.jobs:
            self._stepped.run_on(self, self.jobs[0])


class SteppedThreads:
    """All threads of one process. ``split`` is the share of jobs that stop at file operations."""

    def __init__(self, chance: Random, *, split: float = 0.2) -> None:
        self._chance = chance
        self._split = split
        self._executors: list[SteppedExecutor] = []
        self._running: _Job | None = None
        self._abandoned = False

    def executor(self, count: int) -> SteppedExecutor:
        """Return an executor with ``count`` threads."""
        made = SteppedExecutor(self, count)
        self._executors.append(made)
        return made

    @property
    def busy(self) -> bool:
        """True if there is a job to run."""
        return any(executor.jobs for executor in self._executors)

    def step(self) -> bool:
        """Run one job until it ends or stops; return False if there is none."""
        found = [
            (executor, job)
            for executor in self._executors
            for job in executor.jobs[: executor.count]
        ]
        if not found:
            return False
        self.run_on(*(found[0] if len(found) == 1 else self._chance.choice(found)))
        return True

    def run_on(self, executor: SteppedExecutor, job: _Job) -> None:
        """Run one job until it ends or stops."""
        if job.thread is None and self._chance.random() >= self._split:
            executor.jobs.remove(job)
            job.run()
            return
        thread = job.thread or job.split()
        outer, self._running = self._running, job
        job.go_on()
        self._running = outer
        if job.future.done():
            executor.jobs.remove(job)
            thread.join()

    def finish(self, future: JobFuture) -> None:
        """Run the job of a future to its end, after the earlier jobs of its executor."""
        if future.done():
            return
        for executor in self._executors:
            if any(job.future is future for job in executor.jobs):
                while not future.done():
                    self.run_on(executor, executor.jobs[0])

    def pause(self) -> None:
        """Stop a split job at random, before a file operation changes something."""
        job = self._running
        if job is None or job.thread is not threading.current_thread():
            return
        if not self._abandoned and self._chance.random() < _PAUSE_CHANCE:
            job.stop()
        if self._abandoned:
            raise JobAbandoned

    def abandon(self) -> None:
        """End every job at its current point, because the process has ended."""
        self._abandoned = True
        for executor in self._executors:
            for job in executor.jobs:
                if job.thread is None:
                    job.future.cancel()
                else:
                    self._running = job
                    job.go_on()
                    job.thread.join()
            executor.jobs.clear()
        self._running = None
