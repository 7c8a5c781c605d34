"""Flush of the log to the device: one sync at a time, shared by all requests that wait.

Callers request a sync after a write. If few messages wait and recent syncs were quick, it runs at
once on the event loop, which would otherwise be idle. If not, a thread runs it while the loop
serves further requests, and all bytes written in the meantime share the next sync
(docs/decisions/0003-sync-flush.md has the numbers).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from cometmq.core.clock import Clock
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.log.logfile import LogFile

logger = logging.getLogger(__name__)

INLINE_BOUND_NS = 2_000_000
INLINE_MESSAGES = 8
_SAMPLES = 100


class Latency:
    """Durations of the last 100 syncs, compared with INLINE_BOUND_NS."""

    __slots__ = ("_recent", "_slow")

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=_SAMPLES)
        self._slow = 0

    def add(self, duration_ns: int) -> None:
        """Add the duration of one sync."""
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
    """Syncs the log. ``on_synced`` is called with the new durable offset, ``on_failed`` with the
    OSError.

    ``thread`` belongs to this object, and :meth:`close` shuts it down.
    """

    __slots__ = (
        "_again",
        "_clock",
        "_log",
        "_on_failed",
        "_syncing",
        "_thread",
        "inline_count",
        "latency",
        "on_synced",
        "threaded_count",
    )

    def __init__(
        self,
        log: CommitLog,
        clock: Clock,
        thread: Executor,
        on_synced: Callable[[int], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self.on_synced = on_synced
        self._on_failed = on_failed
        self._thread = thread
        self.latency = Latency()
        self._syncing: Future[int] | None = None
        self._again = False
        self.inline_count = 0
        self.threaded_count = 0

    def sync(self, messages: int) -> None:
        """Start to sync all bytes written so far; ``on_synced`` is called when they are durable.

        ``messages`` is the number of messages that wait for it.
        """
        log = self._log
        if self._syncing is not None:
            self._again = True
            return
        if log.failure is not None or log.durable >= log.written:
            return
        if messages <= INLINE_MESSAGES and self.latency.is_quick:
            self.sync_now()
        else:
            self._start_thread()

    def sync_now(self) -> None:
        """Sync in the calling thread, which blocks meanwhile."""
        target, files = self._log.written, self._log.unsynced_files()
        self.inline_count += 1
        try:
            duration_ns = self._sync_files(files)
        except OSError as error:
            self._on_failed(error)
            return
        self.latency.add(duration_ns)
        self.on_synced(target)

    def sync_in_thread(self) -> None:
        """Start to sync in the thread, however quick the device is."""
        log = self._log
        if self._syncing is None and log.failure is None and log.durable < log.written:
            self._start_thread()

    def _start_thread(self) -> None:
        target, files = self._log.written, self._log.unsynced_files()
        self.threaded_count += 1
        for file in files:
            file.pin()
        self._syncing = self._thread.submit(self._sync_files, files)

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
        self.on_synced(target)
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
        self._thread.shutdown()
        syncing, self._syncing = self._syncing, None
        if syncing is not None and isinstance(error := syncing.exception(), OSError):
            self._on_failed(error)
