"""Checksums of full log files while the broker runs: files get seals, and are compared with them.

A seal is a file of checksums (log/checksums.py). :class:`Sealer` writes the seal of a log file once
all of the file is on the device. :class:`Scrub` compares sealed files with their seals in repeated
passes. For both, a child process of the lowest priority reads one file after another
(docs/decisions/0018-seals.md has the measurements). The scrub's child is this module:

    python -m cometmq.store.maintenance.checksumming PATH SIZE BYTES_PER_S

It writes the CRC of each block to standard output, in the format of seals (log/checksums.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import os.path
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.core.clock import SystemClock
from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import ReadOnlyFiles, read_file, write_file_atomically
from cometmq.store.log.checksums import BLOCK_BYTES, FileSums, Seal, sums_of

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.log.segments import LogFile
    from cometmq.store.parts import StoreParts

logger = logging.getLogger(__name__)

#: Pause of sealing after a failure.
_REST_MS = 600_000
_LOWEST_PRIORITY = 19
SCRUB_FILE: Final = "cometmq-scrub.json"
_HOUR_MS: Final = 3_600_000
_PIECE_BYTES = 8 * BLOCK_BYTES
_NO_SUM = bytes(4)

#: A function of the path of a log file, its base, its size, a store time (ms, see
#: ``FileSums.late_from``) and the delay levels. Returns its checksums and totals. Raises
#: SumsFailed, OSError.
Reader = Callable[[str, int, int, int, str], Awaitable[FileSums]]
#: A function of the path of a log file, its size and a rate in bytes per second. Returns the CRCs
#: of its blocks. Raises SumsFailed, OSError.
BlockReader = Callable[[str, int, int], Awaitable[bytes]]


class SumsFailed(Exception):
    """The child process failed or returned an unreadable answer."""


async def sums_by_child(
    path: str, base: int, size_bytes: int, moment_ms: int, delay_levels: str
) -> FileSums:
    """Have a child process read a log file. Cancelling the caller kills the child.

    Raises SumsFailed, OSError.
    """
    words = [path, str(base), str(size_bytes), str(moment_ms), delay_levels]
    answer = await run_child("cometmq.store.tools.sums", words)
    try:
        return msgspec.json.decode(answer, type=FileSums)
    except msgspec.DecodeError as error:
        raise SumsFailed(str(error)) from error


async def run_child(module: str, words: list[str]) -> bytes:
    """Run a module as a child process and return what it writes to standard output.

    Cancelling the caller kills the child. Raises SumsFailed, OSError.
    """
    command = [sys.executable, "-m", module, *words]
    # In a thread: with the large memory of a broker, starting a process takes 5 ms.
    starting = asyncio.get_running_loop().run_in_executor(None, _start, command)
    try:
        child = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_end)
        raise
    try:
        answer, complaint = await asyncio.to_thread(child.communicate)
    except BaseException:
        child.kill()
        await asyncio.to_thread(child.wait)
        raise
    if child.returncode:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise SumsFailed(f"exit code {child.returncode}: {last}")
    return answer


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    # The parent does it, because the child's imports already take 0.2 s of processor time.
    lower_priority(child.pid)
    return child


def lower_priority(pid: int) -> None:
    """Let a process run only when no other needs the processor; ignore a failure."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LOWEST_PRIORITY)
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def _end(starting: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """Kill a child process whose caller was cancelled while it was started."""
    if not starting.cancelled() and starting.exception() is None:
        child = starting.result()
        child.kill()
        child.communicate()


class Sealer:
    """Seals the full files of one store. ``refused`` holds the base offsets of damaged files.

    The child (tools/sums.py) checks every record, so that a seal never covers damage. A seal is
    doubted if another broker may have changed its log file (log/checksums.py). It is compared with
    the result of the child:

    - if it matches, it becomes valid again;
    - if the log file was cut and appended to, a new seal replaces it;
    - any other difference is damage: the seal becomes valid again, and the blocks that differ are
      not served.
    """

    __slots__ = ("_has_complained", "_parts", "_read", "_rest_until_ms", "refused")

    def __init__(self, parts: StoreParts, read: Reader = sums_by_child) -> None:
        self._parts = parts
        self._read = read
        self._rest_until_ms = 0
        self._has_complained = False
        self.refused: set[int] = set()

    async def seal_full_files(self) -> None:
        """Seal every file that can be sealed. Raises OSError; the next round tries again.

        If the child process fails, perhaps for lack of memory, sealing pauses for ten minutes.
        Without numpy, which the child needs, files stay unsealed; a log line says so once.
        """
        if self._parts.clock.monotonic_ms() < self._rest_until_ms:
            return
        if self._next() is not None and importlib.util.find_spec("numpy") is None:
            if not self._has_complained:
                logger.warning(
                    "log_files_not_sealed reason='numpy is not installed' "
                    "hint=\"pip install 'cometmq[tools]': full log files get checksums\""
                )
            self._has_complained = True
            self._rest_until_ms = self._parts.clock.monotonic_ms() + _REST_MS
            return
        while (file := self._next()) is not None:
            doubted = self._doubted(file)
            moment_ms = 0 if doubted is None else doubted.summary.last_ms
            levels = self._parts.config.message_delay_level
            try:
                found = await self._read(file.path, file.base, file.size_bytes, moment_ms, levels)
            except (SumsFailed, OSError) as error:
                if file.closed:
                    continue
                logger.error("log_file_not_sealed path=%s reason=%r", file.path, str(error))
                self._rest_until_ms = self._parts.clock.monotonic_ms() + _REST_MS
                return
            if doubted is not None:
                await self._judge(file, doubted, found)
            elif found.problem:
                self._refuse(file, found.problem)
            else:
                await self._add(file, found)

    def _next(self) -> LogFile | None:
        log = self._parts.log
        for file in log.segments.files:
            if file.end > log.durable:
                return None
            if file.seals is None and file.base not in self.refused:
                return file
        return None

    def _doubted(self, file: LogFile) -> Seal | None:
        seals = self._parts.seals
        if file.base not in seals.doubted:
            return None
        try:
            found = seals.read(file.base, doubted=True)
        except StoreCorrupt as error:
            logger.error("seal_unreadable error=%r", str(error))
            return None
        return found if found is not None and found.size_bytes == file.size_bytes else None

    async def _judge(self, file: LogFile, seal: Seal, found: FileSums) -> None:
        differing = seal.differing(found.sums)
        if differing and is_stale(seal, differing, found.late_from):
            logger.info("seal_outdated path=%s from=%d", file.path, found.late_from)
            if found.problem:
                await self._in_thread(self._parts.seals.forget, [file.base])
                self._refuse(file, found.problem)
            else:
                await self._add(file, found)
            return
        await self._in_thread(self._parts.seals.confirm, file.base)
        if self._is_gone(file):
            return
        file.seals = self._parts.seals
        damaged = [seal.base + block * BLOCK_BYTES for block in differing]
        self._parts.reads.note_damage(file, damaged)

    async def _add(self, file: LogFile, found: FileSums) -> None:
        parts = self._parts
        made_ms = parts.clock.wall_ms()
        seal = Seal(file.base, file.size_bytes, made_ms, found.summary, found.sums)
        await self._in_thread(parts.seals.add, seal)
        if self._is_gone(file):
            return
        file.seals = parts.seals
        logger.info("log_file_sealed path=%s", file.path)

    async def _in_thread(self, call: Callable[..., None], *values: object) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._parts.executor, call, *values)

    def _is_gone(self, file: LogFile) -> bool:
        """Return whether the file was dropped in the meantime, and remove its seal if so."""
        if file.closed:
            self._parts.seals.forget([file.base], durable=False)
        return file.closed

    def _refuse(self, file: LogFile, problem: str) -> None:
        self.refused.add(file.base)
        logger.error(
            "log_file_damaged path=%s problem=%r hint='cometmq store verify lists all damage'",
            file.path, problem,
        )  # fmt: skip


def is_stale(seal: Seal, differing: list[int], late_from: int) -> bool:
    """Return whether another broker cut the sealed file and appended to it.

    ``late_from`` is the physical offset from which every record was stored after the last sealed
    one; -1 if there is none. New records there explain the differences if every differing block
    reaches beyond ``late_from``. A flipped bit changes one block and leaves the later ones
    unchanged.
    """
    if late_from < 0:
        return False
    return all(seal.base + (block + 1) * BLOCK_BYTES > late_from for block in differing)


class ScrubProgress(msgspec.Struct):
    """State of the current pass: its start (wall time), its position, and the damaged blocks.

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
    return await run_child("cometmq.store.maintenance.checksumming", words)


class Scrub:
    """Compares the sealed files of one store with their seals. ``read`` reads one file.

    Reads by consumers do not check seals. Flipped bits are found by a pass over all sealed files,
    which begins every ``scrubIntervalHours`` and reads ``scrubBytesPerSecond``. Once a block is
    known as damaged, its bytes are not served (read/coldreads.py).

    The position of the pass and the damaged blocks are kept in ``cometmq-scrub.json``, so that a
    restart continues with both. The file is replaced atomically after each log file.
    """

    __slots__ = ("_parts", "_progress", "_saved", "_unsure", "read")

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self.read: BlockReader = block_sums_by_child
        self._progress = ScrubProgress()
        self._saved = b""
        #: True if damage that an earlier run found must be confirmed: the files may have been
        #: restored since.
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
            self._progress = msgspec.json.decode(raw, type=ScrubProgress)
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


async def read_block_sums(
    files: ReadOnlyFiles, clock: Clock, path: str, size_bytes: int, bytes_per_s: int
) -> bytes:
    """Read a log file at ``bytes_per_s`` and return the CRC of each block.

    Blocks that were not in the page cache are dropped from it again. A block that cannot be read
    gets the CRC of no bytes. Raises OSError if the file cannot be opened.
    """
    handle = files.open(path)
    try:
        sums: list[bytes] = []
        begun_ms = clock.monotonic_ms()
        for at in range(0, size_bytes, _PIECE_BYTES):
            stop = min(at + _PIECE_BYTES, size_bytes)
            sums += [
                _sum_of(files, handle, block, min(BLOCK_BYTES, stop - block))
                for block in range(at, stop, BLOCK_BYTES)
            ]
            due_ms = begun_ms + stop * 1_000 // bytes_per_s
            await clock.sleep_ms(max(0, due_ms - clock.monotonic_ms()))
        return b"".join(sums)
    finally:
        files.close(handle)


def _sum_of(files: ReadOnlyFiles, handle: int, offset: int, size_bytes: int) -> bytes:
    block = memoryview(bytearray(size_bytes))
    try:
        found = files.read_cached(handle, block, offset)
        if found < size_bytes:
            found = files.read_into(handle, block, offset)
            files.drop_cached(handle, offset, size_bytes)
    except OSError:
        found = 0
    return sums_of(block[:found]) or _NO_SUM


def main(words: Sequence[str]) -> int:
    """Read the file given by the arguments ``words`` and write the CRCs: the scrub's child."""
    path, size_bytes, bytes_per_s = words
    reading = read_block_sums(
        ReadOnlyFiles(), SystemClock(), path, int(size_bytes), int(bytes_per_s)
    )
    sys.stdout.buffer.write(asyncio.run(reading))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
