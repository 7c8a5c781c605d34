"""The parts of an open store, whether it accepts writes, and what its start found.

Background work and the transient pool work on these parts; only MessageStore knows all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreFull, StoreOffline

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from cometmq.core.clock import Clock
    from cometmq.core.errors import StoreError
    from cometmq.store.config import StoreConfig
    from cometmq.store.dispatch import Backlog, Dispatcher
    from cometmq.store.files import Files
    from cometmq.store.index import Index
    from cometmq.store.log.checksums import BlockChecksums
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.log.flush import Flusher
    from cometmq.store.queue.queuefiles import QueueFiles
    from cometmq.store.queue.table import QueueTable
    from cometmq.store.read.coldreads import ColdReads

logger = logging.getLogger(__name__)


class WriteState:
    """Whether a store accepts writes, and why not.

    ``refusal`` is the error that writers get, None while writes are accepted. :meth:`update`
    derives it from the current problems: ``disk_problem`` (a full disk), ``pool_problem`` (the
    transient pool cannot be written), ``mark_problem`` (no room for the abort marker), and the
    dispatcher's. ``last_ms`` is the newest store time. ``put_failures`` counts messages that could
    not be stored.
    """

    __slots__ = (
        "_dispatcher",
        "_log",
        "_root",
        "closed",
        "disk_problem",
        "last_ms",
        "mark_problem",
        "pool_problem",
        "put_failures",
        "refusal",
    )

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, root: str) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._root = root
        self.refusal: StoreError | None = None
        self.disk_problem = ""
        self.pool_problem: StoreFull | None = None
        self.mark_problem: OSError | None = None
        self.put_failures = 0
        self.last_ms = 0
        self.closed = False

    def update(self) -> None:
        """Refuse or accept writes depending on the current problems.

        Writes stay refused after a failure of the log and after :meth:`close`.
        """
        if self._log.failure is not None or self.closed:
            return
        refusal = self._reason()
        if (refusal is None) != (self.refusal is None):
            if refusal is None:
                logger.warning("store_writes_resumed after=%r", str(self.refusal))
            else:
                logger.warning("store_writes_refused reason=%r", str(refusal))
        self.refusal = refusal

    def close(self) -> None:
        """Refuse all writes from now on: the store is closed."""
        self.refusal = StoreOffline(f"store {self._root} is closed")

    def _reason(self) -> StoreFull | None:
        """Return the reason to refuse writes: a full disk, or files that could not be written."""
        if self.disk_problem:
            return StoreFull(self.disk_problem)
        if self.pool_problem is not None:
            return self.pool_problem
        if self.mark_problem is not None:
            return StoreFull(
                f"no room in {self._root} for an empty file ({self.mark_problem}): free space "
                "there; writes resume automatically"
            )
        problem = self._dispatcher.problem
        if problem is not None:
            return StoreFull(
                f"writing queue or index files under {self._root} failed: {problem}; writes resume "
                "automatically when it succeeds"
            )
        return None


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of one store, and its surroundings.

    ``executor`` runs calls that would block the event loop. ``pool`` holds the files of ``queues``.
    ``seals`` are the checksums of full log files (log/checksums.py).
    """

    config: StoreConfig
    clock: Clock
    files: Files
    executor: Executor
    log: CommitLog
    pool: QueueFiles
    index: Index
    queues: QueueTable
    dispatcher: Dispatcher
    backlog: Backlog
    seals: BlockChecksums
    reads: ColdReads
    flusher: Flusher
    state: WriteState


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log that holds no valid record, from ``offset`` in the file ``path``.

    ``next_offset`` is the offset of the next valid record, -1 if there is none.
    """

    path: str
    offset: int
    next_offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of a start.

    ``start`` and ``end`` are the bounds of the log that was read; ``torn`` says that bytes after
    ``end`` were no record. ``damages`` are the damaged places of the log. ``cut`` is the offset
    from which durable bytes were given up, -1 if none were. ``remade`` are the queues that were
    rebuilt, ``kept`` the paths that were set aside. ``shrunk`` says that queues may end before the
    offsets of their consumers.
    """

    crashed: bool
    reason: str
    start: int
    end: int
    records: int
    torn: bool
    duration_ms: int
    shrunk: bool = False
    damages: tuple[Damage, ...] = ()
    cut: int = -1
    remade: tuple[tuple[str, int], ...] = ()
    kept: tuple[str, ...] = ()
