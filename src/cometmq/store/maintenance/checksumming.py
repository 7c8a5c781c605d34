"""Sealing while the broker runs: a child process reads one full log file after another.

A file is sealed once all of it is on the device. The child (tools/sums.py) checks every record, so
that a seal never covers damage; docs/decisions/0018-seals.md has the measurements for using a
child. Seals in doubt, because another broker may have changed their file, are compared with the
child's result. A seal that matches becomes valid again. If its file was cut and appended to, a new
seal replaces it. Any other difference is damage: the seal stays valid, and the blocks that differ
are not served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from cometmq.core.errors import StoreCorrupt
from cometmq.store.log.checksums import BLOCK_BYTES, FileSums, Seal

if TYPE_CHECKING:
    from cometmq.store.log.logfile import LogFile
    from cometmq.store.parts import StoreParts

logger = logging.getLogger(__name__)

_REST_MS = 600_000
_LOWEST_PRIORITY = 19

Reader = Callable[[str, int, int, int, str], Awaitable[FileSums]]


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
    # In threads: starting one from here takes 5 ms of the loop, for the memory is large.
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
    # From here and not by the child itself: its imports take 0.2 s of a processor, which the loop
    # would have to share.
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
    """Seals the full files of one store. ``refused`` holds the base offsets of damaged files."""

    __slots__ = ("_parts", "_read", "_rest_until_ms", "refused")

    def __init__(self, parts: StoreParts, read: Reader = sums_by_child) -> None:
        self._parts = parts
        self._read = read
        self._rest_until_ms = 0
        self.refused: set[int] = set()

    async def seal_full_files(self) -> None:
        """Seal every file that can be sealed. Raises OSError; the next round tries again.

        If the child process fails, perhaps for lack of memory, sealing pauses for ten minutes.
        """
        if self._parts.clock.monotonic_ms() < self._rest_until_ms:
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
    """Decide whether another broker cut the sealed file and appended to it.

    That explains the differences if every record from ``late_from`` on was stored after the last
    sealed record and every differing block reaches beyond it. ``late_from`` is -1 if there are no
    such records. A flipped bit, in contrast, changes one block and leaves the later ones unchanged.
    """
    if late_from < 0:
        return False
    return all(seal.base + (block + 1) * BLOCK_BYTES > late_from for block in differing)
