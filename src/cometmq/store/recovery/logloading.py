"""Loading of the log files at a start: repairs missing or short files, creates the first one."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt, StoreFull
from cometmq.store.config import DamagePolicy
from cometmq.store.log.commitlog import NO_ROOM
from cometmq.store.recovery.damage import mend_file, ways_out

if TYPE_CHECKING:
    from cometmq.store.checkpoint import Positions
    from cometmq.store.log.segments import FileFault
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.recovery.quarantine import SetAside
    from cometmq.store.recovery.queuevalidation import Queues
    from cometmq.store.recovery.startingpoint import StartingPoint

logger = logging.getLogger(__name__)


class LogLoading:
    """Loads the log files of one store; ``positions`` are the notes of its last run."""

    def __init__(
        self, store: MessageStore, aside: SetAside, queues: Queues, positions: Positions | None
    ) -> None:
        self._store = store
        self._config = store.config
        self._segments = store.log.segments
        self._aside = aside
        self._queues = queues
        self._positions = positions
        self._short: list[FileFault] = []

    def load(self) -> None:
        """Open all files, or create the first one.

        Raises StoreCorrupt for files that are missing or have another size, unless they can be
        repaired and the damage policy permits it; StoreFull if there is no room for the first file.
        """
        store, segments = self._store, self._segments
        noted = self._positions
        size = noted.file_bytes if noted is not None else 0
        if size not in (0, segments.file_bytes):
            raise StoreCorrupt(
                segments.directory, -1,
                f"mappedFileSizeCommitLog is {segments.file_bytes}, the store was written with "
                f"{size}: start with that",
            )  # fmt: skip
        segments.load(self._mend_file, size_is_sure=size > 0)
        segments.attach(store.seals)
        if not segments.files:
            self._create_first(self._first_base())

    def _mend_file(self, fault: FileFault) -> None:
        self._store.seals.forget([fault.base])
        mend_file(
            fault, self._segments, self._store.files, self._config, self._aside, self._queues.punch
        )
        if 0 <= fault.size_bytes < self._segments.file_bytes:
            self._short.append(fault)

    def _first_base(self) -> int:
        """Return the first offset of a store without log files: 0 for a new one.

        Raises StoreCorrupt if there must have been files, unless the damage policy gives them up.
        """
        noted = self._positions
        end = max(noted.written, noted.durable) if noted is not None else self._queues.reach()
        if not end:
            return 0
        directory, size = self._segments.directory, self._segments.file_bytes
        if self._config.damage_policy is not DamagePolicy.TRUNCATE:
            ways = ways_out(self._config, "changes nothing here", "begins with an empty log")
            raise StoreCorrupt(
                directory, -1,
                f"there is no log file, but the log reached up to {end}: is this the right "
                "directory (storePathCommitLog), and is its device mounted?",
                ways_out=(ways[0], ways[2]),
            )  # fmt: skip
        logger.error("log_lost directory=%s reached=%d", directory, end)
        return -(-end // size) * size

    def _create_first(self, base: int) -> None:
        segments = self._segments
        try:
            segments.add(segments.create_file(base))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise StoreFull(
                f"the first log file needs {segments.file_bytes} bytes in {segments.directory}, "
                f"{segments.free_bytes()} are free: free space there, choose another directory, or "
                "set a smaller mappedFileSizeCommitLog"
            ) from error

    @property
    def unread(self) -> list[int]:
        """Base offsets of files that must be read because part of them is lost."""
        return [fault.base for fault in self._short]

    def prove_short_files(self, start: StartingPoint) -> StartingPoint:
        """Extend the proof to short files that have a successor: they were durable to their end."""
        ends = [f.base + self._segments.file_bytes for f in self._short if f.next_base >= 0]
        proof = replace(start.proof, offset=max([start.proof.offset, *ends]))
        return replace(start, proof=proof)
