"""The transient pool: records acknowledged before they are written.

It is used with ``transientStorePoolEnable`` and ASYNC_FLUSH. The commit of a turn leaves its
records in memory (``CommitLog.hold``). They are written together

- once ``commitCommitLogLeastPages`` of 4 KiB wait, after the answers of the turn have left;
- in the check every ``commitIntervalCommitLog``, if nothing was written for
  ``commitCommitLogThoroughInterval``;
- at once, within the commit, if POOL_MAX_BYTES or ``transientStorePoolSize`` log files wait;
- at shutdown, and when a caller needs the whole log (``MessageStore.write_out``).

(upstream: TransientStorePool.java, CommitLog.CommitRealTimeService)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import StoreError, StoreFull, fresh_copy
from cometmq.store.dispatch import take_back

if TYPE_CHECKING:
    from cometmq.store.parts import StoreParts
    from cometmq.store.queue.consumequeue import RecordGroup

logger = logging.getLogger(__name__)

_PAGE_BYTES: Final = 4096
#: One write of this size holds the loop for 3 to 5 ms.
POOL_MAX_BYTES: Final = 8 << 20


class TransientPool:
    """The acknowledged but unwritten records of one store.

    Records are dispatched only after their write, so consumers, queries and slaves see only written
    ones. Killing the process loses the waiting records. A full disk loses nothing: the store
    refuses more messages, and the next check tries again. If the device fails, the waiting records
    are lost.

    The functions in ``on_progress`` are called after each write. ``lost`` counts lost records. The
    functions in ``on_lost`` get the error, once the queue offsets of lost records are free again.
    """

    __slots__ = (
        "_config",
        "_on_progress",
        "_parts",
        "_will_write",
        "_written_ms",
        "lost",
        "most_bytes",
        "on_lost",
        "writes",
    )

    def __init__(self, parts: StoreParts, on_progress: list[Callable[[], None]]) -> None:
        config = parts.config
        whole_files = config.transient_store_pool_size * config.mapped_file_size_commit_log
        self.most_bytes = min(whole_files, POOL_MAX_BYTES)
        self._config = config
        self._parts = parts
        self._on_progress = on_progress
        self._written_ms = parts.clock.monotonic_ms()
        self._will_write = False
        self.on_lost: list[Callable[[StoreError], None]] = []
        self.lost = self.writes = 0

    @property
    def waiting_bytes(self) -> int:
        """Size of the acknowledged but unwritten part of the log, in bytes."""
        log = self._parts.log
        return log.held - log.written

    def take(self, segments: list[RecordGroup], now_ms: int) -> None:
        """Hold the records of a turn for a later write, or write them now if too much waits.

        Raises StoreOffline if the device failed; then none of the turn's records is stored.
        """
        parts = self._parts
        if parts.log.failure is not None:
            self._try()
            parts.log.drop_held()
            parts.state.put_failures += sum(map(len, segments))
            for segment in reversed(segments):
                take_back(segment)
            raise fresh_copy(parts.log.failure)
        parts.log.hold()
        parts.backlog.take(segments, parts.log.held, now_ms, ready=False)
        if self.waiting_bytes >= self.most_bytes and parts.state.pool_problem is None:
            self._try()
            if parts.log.failure is not None:
                raise fresh_copy(parts.log.failure)

    def write_soon(self) -> None:
        """Write in a later turn of the loop if enough records wait, so that answers leave first."""
        if self._will_write or self._parts.state.pool_problem is not None:
            return
        if (
            not self.waiting_bytes
            or self.waiting_bytes < self._config.commit_commit_log_least_pages * _PAGE_BYTES
        ):
            return
        call_soon = self._parts.backlog.call_soon
        if call_soon is None:
            self._try()
        else:
            self._will_write = True
            call_soon(self._write_now)

    async def write_late(self) -> None:
        """Write the waiting records if there are enough, or if the last write was long ago."""
        waiting, now_ms = self.waiting_bytes, self._parts.clock.monotonic_ms()
        is_late = now_ms - self._written_ms >= self._config.commit_commit_log_thorough_interval
        if waiting and (
            is_late or waiting >= self._config.commit_commit_log_least_pages * _PAGE_BYTES
        ):
            self._try()

    def write(self) -> None:
        """Write and dispatch all waiting records.

        Raises StoreFull if there is no room; the records then keep waiting. Raises StoreOffline if
        the device failed; the records are then lost.
        """
        parts, log = self._parts, self._parts.log
        if not self.waiting_bytes:
            return
        self._written_ms = parts.clock.monotonic_ms()
        try:
            log.write_held()
        except StoreFull as error:
            if parts.state.pool_problem is None:
                logger.error(
                    "acknowledged_records_wait bytes=%d records=%d problem=%r",
                    self.waiting_bytes, parts.backlog.messages, str(error),
                )  # fmt: skip
            parts.state.pool_problem = error
            parts.state.refusal = fresh_copy(error)
            raise
        except StoreError as error:
            self._lose(error)
            raise
        self.writes += 1
        if parts.state.pool_problem is not None:
            parts.state.pool_problem = None
            parts.state.update()
        parts.backlog.release(log.written, parts.state.last_ms)
        for call in self._on_progress:
            call()

    def close(self) -> None:
        """Write all waiting records; those that cannot be written are lost."""
        try:
            self.write()
        except StoreFull as error:
            self._parts.log.drop_held()
            self._lose(error)
        except StoreError as error:
            # ``write`` has already counted and logged the loss.
            logger.debug("transient_pool_closed problem=%r", str(error))

    def _write_now(self) -> None:
        self._will_write = False
        self._try()

    def _try(self) -> None:
        try:
            self.write()
        except StoreError as error:
            # ``write`` has logged it, and the store refuses further messages.
            logger.debug("transient_pool_not_written problem=%r", str(error))

    def _lose(self, error: StoreError) -> None:
        parts = self._parts
        count = parts.backlog.take_back(parts.log.written)
        self.lost += count
        parts.state.put_failures += count
        parts.state.refusal = fresh_copy(error)
        logger.error(
            "acknowledged_records_lost records=%d log_end=%d problem=%r",
            count, parts.log.written, str(error),
        )  # fmt: skip
        for call in self.on_lost:
            call(error)
