"""Flush of the log to the device: one sync at a time, shared by all requests that wait.

Callers request a sync after a write. If few messages wait and recent syncs were quick, it runs at
once on the event loop, which would otherwise be idle. If not, a thread runs it while the loop
serves further requests, and all bytes written in the meantime share the next sync
(docs/decisions/0003-sync-flush.md has the numbers).

The thread is the core's (``SyncThread`` in speedups): it begins the next sync as soon as the last
one ends, without the interpreter's lock (docs/decisions/0047-a-flush-thread-of-its-own.md). File
layers with a sync of their own, such as the simulator's, get an executor instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.core.histogram import Histogram

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from cometmq.core.clock import Clock
    from cometmq.speedups import SyncThread
    from cometmq.store.files import Files
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.log.segments import LogFile

logger = logging.getLogger(__name__)

#: Syncs run on the event loop while they are quicker than this and few messages wait.
INLINE_BOUND_NS = 2_000_000
INLINE_MESSAGES = 8
#: With more bytes to sync, no zeros are written: the sync takes its time for the bytes, and zeros
#: would double that.
ZEROS_BOUND_BYTES = 1 << 18
_SAMPLES = 100
#: Upper bounds of the histogram of sync durations, in seconds.
SYNC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Latency:
    """How many of the last 100 syncs were slow, and a histogram of all durations in ``seconds``.

    A sync is slow if it takes longer than INLINE_BOUND_NS.
    """

    __slots__ = ("_recent", "_slow", "seconds")

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=_SAMPLES)
        self._slow = 0
        self.seconds = Histogram(SYNC_BOUNDS_S)

    def add(self, duration_ns: int) -> None:
        """Add the duration of one sync."""
        self.seconds.add(duration_ns / 1e9)
        slow = duration_ns > INLINE_BOUND_NS
        if len(self._recent) == _SAMPLES:
            self._slow -= self._recent[0]
        self._recent.append(slow)
        self._slow += slow

    @property
    def is_quick(self) -> bool:
        """True if the p99 of the recent syncs is within the bound; False before ten syncs."""
        return len(self._recent) >= 10 and self._slow <= len(self._recent) // _SAMPLES


class Flusher:
    """Syncs the log.

    ``on_synced`` is called with the new durable offset, ``on_failed`` with the OSError, which has
    the path. ``files`` provides the thread, which :meth:`close` ends.
    """

    __slots__ = (
        "_again",
        "_asked",
        "_clock",
        "_core",
        "_core_loop",
        "_log",
        "_on_failed",
        "_on_synced",
        "_since_ns",
        "_syncing",
        "_thread",
        "inline_count",
        "latency",
        "threaded_count",
    )

    def __init__(
        self,
        log: CommitLog,
        clock: Clock,
        files: Files,
        on_synced: Callable[[int], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._core: SyncThread | None = files.sync_thread()
        #: The loop that gets the results of the core's thread; None before its first sync.
        self._core_loop: asyncio.AbstractEventLoop | None = None
        #: End of the log that the core's thread was asked to sync and has not reported yet; else 0.
        self._asked = 0
        #: When the running sync of the core's thread began, as far as the loop knows.
        self._since_ns = 0
        self._thread: Executor | None = None
        if self._core is None:
            self._thread = files.threads(1, "cometmq-flush")
        self.latency = Latency()
        self._syncing: Future[int] | None = None
        self._again = False
        self.inline_count = 0
        self.threaded_count = 0

    def watch(self, watched: Callable[[str, Callable[[int], None]], Callable[[int], None]]) -> None:
        """Wrap ``on_synced`` with ``watched``, which reports long turns (net/eventloop.py)."""
        self._on_synced = watched("synced", self._on_synced)

    def sync(self, messages: int) -> None:
        """Start to sync all bytes written so far; ``on_synced`` is called when they are durable.

        ``messages`` is the number of messages that wait for the sync.
        """
        log = self._log
        if self._syncing is not None:
            self._again = True
            return
        if log.failure is not None or log.durable >= log.written:
            return
        if not self._asked and messages <= INLINE_MESSAGES and self.latency.is_quick:
            self._sync_inline()
            return
        if log.written - log.durable <= ZEROS_BOUND_BYTES:
            log.write_zeros()
        self._start_thread()

    def sync_now(self) -> None:
        """Sync in the calling thread, which blocks meanwhile."""
        if self._asked and self._core is not None:
            # The system reports a failure to one sync only: this one must not miss it.
            self._core.wait()
            self._take()
        if self._log.failure is None:
            self._sync_inline()

    def _sync_inline(self) -> None:
        target, files = self._log.written, self._log.unsynced_files()
        self.inline_count += 1
        try:
            duration_ns = self._sync_files(files)
        except OSError as error:
            self._on_failed(error)
            return
        self.latency.add(duration_ns)
        self._on_synced(target)

    def sync_in_thread(self) -> None:
        """Start to sync in the thread, however quick the device is."""
        log = self._log
        if self._syncing is None and log.failure is None and log.durable < log.written:
            self._start_thread()

    def _start_thread(self) -> None:
        if self._core is not None:
            self._ask(self._core)
        elif self._thread is not None:
            self._submit(self._thread)

    # --- the core's thread

    def _ask(self, core: SyncThread) -> None:
        """Have the core's thread sync all that is written, after the sync that it runs."""
        target = self._log.written
        if self._asked >= target:
            return
        if not self._asked:
            self._since_ns = self._clock.monotonic_ns()
        if self._core_loop is None:
            self._core_loop = asyncio.get_running_loop()
            self._core_loop.add_reader(core.event, self._take)
        try:
            # The files include those of the running sync: ``durable`` has not moved since.
            core.begin([file.handle for file in self._log.unsynced_files()], target)
        except OSError:
            # No descriptor or thread is left, or too many files wait.
            self.sync_now()
            return
        self._asked = target

    def _take(self) -> None:
        """Report what the core's thread has synced."""
        log, core = self._log, self._core
        if core is None:
            return
        target, self.threaded_count, problem = core.take()
        if log.failure is not None:
            return
        try:
            if problem:
                raise self._failure(problem)
            for file in log.unsynced_files():
                if file.base < target:
                    file.check_name(file.handle)
        except OSError as error:
            self._on_failed(error)
            return
        if target >= self._asked:
            self._asked = 0
        if target > log.durable:
            since_ns, self._since_ns = self._since_ns, self._clock.monotonic_ns()
            self.latency.add(self._since_ns - since_ns)
            self._on_synced(target)

    def _failure(self, problem: int) -> OSError:
        # The core does not say which of its files it was; mostly there is one.
        paths = ", ".join(file.path for file in self._log.unsynced_files())
        return OSError(problem, os.strerror(problem), paths)

    # --- an executor

    def _submit(self, thread: Executor) -> None:
        target, files = self._log.written, self._log.unsynced_files()
        self.threaded_count += 1
        for file in files:
            file.pin()
        self._syncing = thread.submit(self._sync_files, files)

        def finished(done: asyncio.Future[int]) -> None:
            for file in files:
                file.unpin()
            if self._syncing is not None:
                self._finish(done, target)

        asyncio.wrap_future(self._syncing).add_done_callback(finished)

    def _finish(self, done: asyncio.Future[int], target: int) -> None:
        self._syncing = None
        again, self._again = self._again, False
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, OSError):
            self._on_failed(error)
            return
        self.latency.add(done.result())
        self._on_synced(target)
        if again and self._log.durable < self._log.written:
            self._start_thread()

    def _sync_files(self, files: list[LogFile]) -> int:
        begin_ns = self._clock.monotonic_ns()
        for file in files:
            file.sync()
        return self._clock.monotonic_ns() - begin_ns

    def close(self) -> None:
        """Wait for a running sync; call ``on_failed`` if it failed.

        The kernel reports a failed sync only once. If this one were ignored, the next would succeed
        without the bytes being durable.
        """
        core, self._core = self._core, None
        if core is not None:
            if self._core_loop is not None and not self._core_loop.is_closed():
                self._core_loop.remove_reader(core.event)
            core.close()
            self._asked = 0
            _, self.threaded_count, problem = core.take()
            if problem and self._log.failure is None:
                self._on_failed(self._failure(problem))
        if self._thread is not None:
            self._thread.shutdown()
        syncing, self._syncing = self._syncing, None
        if syncing is not None and isinstance(error := syncing.exception(), OSError):
            self._on_failed(error)
