"""Records that are acknowledged before they are written (transientStorePoolEnable, ASYNC_FLUSH).

A turn's commit leaves them with the log (``CommitLog.hold``). They are written together

- once ``commitCommitLogLeastPages`` of 4 KiB wait, after the answers of the turn have left;
- by the round of ``commitIntervalCommitLog``, when nothing was written for
  ``commitCommitLogThoroughInterval``;
- at once, within the commit, when POOL_MAX_BYTES wait, or all of ``transientStorePoolSize`` files;
- by a stop, and by whoever needs the whole log (``MessageStore.write_out``).

Only then are they dispatched, so consumers, queries and slaves see what is written and nothing
else. A kill of the process loses what waits. A full disk loses nothing: the store refuses more, and
the round tries again. Where the device fails, what waits is lost as a kill would lose it.

(upstream: TransientStorePool.java, CommitLog.CommitRealTimeService)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import StoreError, StoreFull, anew
from cometmq.store.write.dispatch import take_back

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.queue.rows import Segment

logger = logging.getLogger(__name__)

_PAGE_BYTES: Final = 4096
#: One write of so much holds the loop for 3 to 5 ms.
POOL_MAX_BYTES: Final = 8 << 20


class TransientPool:
    """What one store has acknowledged and not written. ``problem`` is why it cannot be written for
    now, ``lost`` counts the records that never will be. ``on_lost`` hears of such, with the error,
    after their queue offsets were taken back."""

    __slots__ = (
        "_least_bytes",
        "_store",
        "_thorough_ms",
        "_will_write",
        "_written_ms",
        "lost",
        "most_bytes",
        "on_lost",
        "problem",
        "writes",
    )

    def __init__(self, store: MessageStore) -> None:
        config = store.config
        whole_files = config.transient_store_pool_size * config.mapped_file_size_commit_log
        self.most_bytes = min(whole_files, POOL_MAX_BYTES)
        self._least_bytes = config.commit_commit_log_least_pages * _PAGE_BYTES
        self._thorough_ms = config.commit_commit_log_thorough_interval
        self._store = store
        self._written_ms = store.clock.monotonic_ms()
        self._will_write = False
        self.problem: StoreFull | None = None
        self.on_lost: list[Callable[[StoreError], None]] = []
        self.lost = self.writes = 0

    @property
    def waiting_bytes(self) -> int:
        """How much of the log is acknowledged and not written."""
        log = self._store.log
        return log.held - log.written

    def take(self, segments: list[Segment], now_ms: int) -> None:
        """Take what a turn appended, to be written later, or at once when too much waits.

        Raises StoreOffline when the device failed; then nothing of it is stored.
        """
        store = self._store
        if store.log.failure is not None:
            self._try()
            store.log.drop_held()
            store.put_failures += sum(map(len, segments))
            for segment in reversed(segments):
                take_back(segment)
            raise anew(store.log.failure)
        store.log.hold()
        store.backlog.take(segments, store.log.held, now_ms, ready=False)
        if self.waiting_bytes >= self.most_bytes and self.problem is None:
            self._try()
            if store.log.failure is not None:
                raise anew(store.log.failure)

    def write_soon(self) -> None:
        """Write in another turn of the loop, if enough waits; the answers of this one leave
        first."""
        if self._will_write or self.problem is not None:
            return
        if not self.waiting_bytes or self.waiting_bytes < self._least_bytes:
            return
        call_soon = self._store.backlog.call_soon
        if call_soon is None:
            self._try()
        else:
            self._will_write = True
            call_soon(self._write_now)

    async def write_late(self) -> None:
        """Write what waits if enough does, or if nothing was written for long."""
        waiting, now_ms = self.waiting_bytes, self._store.clock.monotonic_ms()
        is_late = now_ms - self._written_ms >= self._thorough_ms
        if waiting and (is_late or waiting >= self._least_bytes):
            self._try()

    def write(self) -> None:
        """Write all that waits, and dispatch it.

        Raises StoreFull, and keeps it, when there is no room; StoreOffline when the device failed:
        then it is lost.
        """
        store, log = self._store, self._store.log
        if not self.waiting_bytes:
            return
        self._written_ms = store.clock.monotonic_ms()
        try:
            log.write_held()
        except StoreFull as error:
            if self.problem is None:
                logger.error(
                    "acknowledged_records_wait bytes=%d records=%d problem=%r",
                    self.waiting_bytes, store.backlog.messages, str(error),
                )  # fmt: skip
            self.problem = error
            store.refusal = anew(error)
            raise
        except StoreError as error:
            self._lose(error)
            raise
        self.writes += 1
        if self.problem is not None:
            self.problem = None
            store.update_refusal()
        store.backlog.release(log.written, store.last_ms)
        for call in store.on_progress:
            call()

    def close(self) -> None:
        """Write all that waits; what cannot be written is lost now."""
        try:
            self.write()
        except StoreFull as error:
            self._store.log.drop_held()
            self._lose(error)
        except StoreError as error:
            # It was counted and said already.
            logger.debug("transient_pool_closed problem=%r", str(error))

    def _write_now(self) -> None:
        self._will_write = False
        self._try()

    def _try(self) -> None:
        try:
            self.write()
        except StoreError as error:
            # Whoever waits for it heard of it, and further sends are refused.
            logger.debug("transient_pool_not_written problem=%r", str(error))

    def _lose(self, error: StoreError) -> None:
        store = self._store
        count = store.backlog.take_back(store.log.written)
        self.lost += count
        store.put_failures += count
        store.refusal = anew(error)
        logger.error(
            "acknowledged_records_lost records=%d log_end=%d problem=%r",
            count, store.log.written, str(error),
        )  # fmt: skip
        for call in self.on_lost:
            call(error)
