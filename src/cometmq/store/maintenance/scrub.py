"""The scrub: compares sealed log files with their seals, one by one, while the broker runs.

Reads do not check seals. Flipped bits in full files are found by a pass over all sealed files,
which begins every ``scrubIntervalHours``. A child process (tools/blocksums.py) reads a file at
``scrubBytesPerSecond``; the loop only starts it and takes its answer. Bytes of a damaged block are
not served from then on (coldreads.py).

The position of the pass and the damaged blocks are kept in ``cometmq-scrub.json``, so that a
restart continues with both. The file is replaced atomically after each log file.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.store.files import read_file, write_file_atomically
from cometmq.store.log.checksums import BLOCK_BYTES
from cometmq.store.maintenance.checksumming import SumsFailed, run_child

if TYPE_CHECKING:
    from cometmq.store.log.logfile import LogFile
    from cometmq.store.parts import StoreParts

logger = logging.getLogger(__name__)

SCRUB_FILE: Final = "cometmq-scrub.json"
_HOUR_MS: Final = 3_600_000

#: Takes the path of a log file, its size and a rate in bytes per second; returns the CRCs of its
#: blocks. Raises SumsFailed, OSError.
BlockReader = Callable[[str, int, int], Awaitable[bytes]]


class Progress(msgspec.Struct):
    """State of the pass: its start (wall time), its position in the log, and damaged blocks.

    ``position`` is a physical offset, -1 between passes. ``damaged`` holds the physical offsets of
    damaged blocks.
    """

    begun_ms: int = 0
    position: int = -1
    damaged: list[int] = []


async def block_sums_by_child(path: str, size_bytes: int, bytes_per_s: int) -> bytes:
    """Have a child process read a log file. Cancelling the caller kills the child.

    Raises SumsFailed, OSError.
    """
    words = [path, str(size_bytes), str(bytes_per_s)]
    return await run_child("cometmq.store.tools.blocksums", words)


class Scrub:
    """Compares the sealed files of one store with their seals. ``read`` reads one file."""

    __slots__ = ("_parts", "_progress", "_saved", "_unsure", "read")

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self.read: BlockReader = block_sums_by_child
        self._progress = Progress()
        self._saved = b""
        #: Damage that an earlier run found must be confirmed: the files may have been restored
        #: since.
        self._unsure = False

    @property
    def _path(self) -> str:
        return os.path.join(self._parts.config.store_path_root_dir, SCRUB_FILE)

    def resume(self) -> None:
        """Load the state of the last run; start without one if it cannot be read."""
        try:
            raw = read_file(self._parts.files, self._path)
            if raw is None:
                return
            self._progress = msgspec.json.decode(raw, type=Progress)
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            logger.warning("scrub_progress_unreadable path=%s error=%r", self._path, str(error))
            return
        self._saved = raw
        for offset in self._progress.damaged:
            file = self._parts.log.segments.find(offset)
            if file is not None and file.seals is not None:
                file.damaged.add(offset - (offset - file.base) % BLOCK_BYTES)
                self._unsure = True

    async def compare_files(self) -> None:
        """Continue a pass, or begin one that is due. Raises OSError; the next round tries again."""
        config, clock = self._parts.config, self._parts.clock
        if self._unsure:
            await self._compare_known()
        progress, bytes_per_s = self._progress, config.scrub_bytes_per_second
        if not bytes_per_s or not self._parts.seals.bases:
            return
        if progress.position < 0:
            now_ms = clock.wall_ms()
            if 0 <= now_ms - progress.begun_ms < config.scrub_interval_hours * _HOUR_MS:
                return
            progress.begun_ms, progress.position = now_ms, 0
        while (file := self._next()) is not None:
            try:
                sums = await self.read(file.path, file.size_bytes, bytes_per_s)
            except (SumsFailed, OSError) as error:
                if not file.closed:
                    logger.error("log_file_not_compared path=%s reason=%r", file.path, str(error))
            else:
                await self._compare(file, sums)
            progress.position = file.end
            await self._save()
        progress.position = -1
        await self._save()
        logger.info("log_scrubbed damaged_blocks=%d", len(progress.damaged))

    def _next(self) -> LogFile | None:
        files = self._parts.log.segments.files
        position = self._progress.position
        return next((f for f in files if f.base >= position and f.seals is not None), None)

    async def _compare(self, file: LogFile, sums: bytes) -> None:
        seals = file.seals
        if seals is None or file.closed:
            return
        loop = asyncio.get_running_loop()
        seal = await loop.run_in_executor(self._parts.executor, seals.of, file.base)
        if file.seals is None or file.closed:
            return
        if seal is None:
            # The seal is unreadable: there is nothing to compare with until the file is sealed
            # again.
            file.unseal()
            return
        reads = self._parts.reads
        for block in seal.differing(sums) if sums != seal.sums else ():
            # Read the block again through the open file: another file may be at its path.
            offset = file.base + block * BLOCK_BYTES
            if await reads.is_damaged(file, offset) and file.seals is not None:
                reads.note_damage(file, [offset])

    async def _compare_known(self) -> None:
        for file in [*self._parts.log.segments.files]:
            for offset in sorted(file.damaged):
                await self._parts.reads.is_damaged(file, offset)
        self._unsure = False
        await self._save()
        if count := len(self._progress.damaged):
            logger.error(
                "log_blocks_damaged count=%d hint='cometmq store verify lists all damage'", count
            )

    async def _save(self) -> None:
        """Write the state if it differs from what was last written. Raises OSError."""
        files = self._parts.log.segments.files
        self._progress.damaged = sorted(offset for file in files for offset in file.damaged)
        raw = msgspec.json.encode(self._progress)
        if raw != self._saved:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._parts.executor, self._write, raw)
            self._saved = raw

    def _write(self, raw: bytes) -> None:
        write_file_atomically(self._parts.files, self._path, raw, durable=True)
