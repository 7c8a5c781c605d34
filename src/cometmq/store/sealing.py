"""Making seals while the broker runs: one full log file after another, read by a child process.

A file is sealed once all of it is on the device. The child (tools/sums.py) checks every record on
the way, so that a seal never stands for damage; the numbers behind the child are in
docs/decisions/0018-seals.md. Seals in doubt, because another broker may have changed their file,
are compared with what the child read: a seal that holds counts again, one whose file was cut and
written on is made anew, and where neither explains a difference the file is damaged and its seal
counts, so that nobody is given what it refuses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from cometmq.core.errors import StoreCorrupt
from cometmq.store.seals import BLOCK_BYTES, FileSums, Seal

if TYPE_CHECKING:
    from cometmq.store.engine import MessageStore
    from cometmq.store.mapped import LogFile

logger = logging.getLogger(__name__)

_REST_MS = 600_000

Reader = Callable[[str, int, int, int, str], Awaitable[FileSums]]


class SumsFailed(Exception):
    """The child process ended without an answer."""


async def sums_by_child(
    path: str, base: int, size_bytes: int, moment_ms: int, delay_levels: str
) -> FileSums:
    """Have a child read a log file; it is ended with its caller. Raises SumsFailed, OSError."""
    words = [path, str(base), str(size_bytes), str(moment_ms), delay_levels]
    answer = await run_child("cometmq.store.tools.sums", words)
    try:
        return msgspec.json.decode(answer, type=FileSums)
    except msgspec.DecodeError as error:
        raise SumsFailed(str(error)) from error


async def run_child(module: str, words: list[str]) -> bytes:
    """What a module that runs as a process of its own writes. Raises SumsFailed, OSError."""
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
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip


def _end(starting: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """Nobody waits for a child any more."""
    if not starting.cancelled() and starting.exception() is None:
        child = starting.result()
        child.kill()
        child.communicate()


class Sealer:
    """Seals the full files of one store. ``refused`` are those that hold damage."""

    __slots__ = ("_read", "_rest_until_ms", "_store", "refused")

    def __init__(self, store: MessageStore, read: Reader = sums_by_child) -> None:
        self._store = store
        self._read = read
        self._rest_until_ms = 0
        self.refused: set[int] = set()

    async def seal_full_files(self) -> None:
        """Seal what can be sealed now. Raises OSError; the next round tries again. Without a child
        that reads a file, which may lack memory, it is left for a while."""
        if self._store.clock.monotonic_ms() < self._rest_until_ms:
            return
        while (file := self._next()) is not None:
            doubted = self._doubted(file)
            moment_ms = 0 if doubted is None else doubted.summary.last_ms
            levels = self._store.config.message_delay_level
            try:
                found = await self._read(file.path, file.base, file.size_bytes, moment_ms, levels)
            except (SumsFailed, OSError) as error:
                if file.closed:
                    continue
                logger.error("log_file_not_sealed path=%s reason=%r", file.path, str(error))
                self._rest_until_ms = self._store.clock.monotonic_ms() + _REST_MS
                return
            if doubted is not None:
                await self._judge(file, doubted, found)
            elif found.problem:
                self._refuse(file, found.problem)
            else:
                await self._add(file, found)

    def _next(self) -> LogFile | None:
        log = self._store.log
        for file in log.segments.files:
            if file.end > log.durable:
                return None
            if file.seals is None and file.base not in self.refused:
                return file
        return None

    def _doubted(self, file: LogFile) -> Seal | None:
        seals = self._store.seals
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
                await self._in_thread(self._store.seals.forget, [file.base])
                self._refuse(file, found.problem)
            else:
                await self._add(file, found)
            return
        await self._in_thread(self._store.seals.confirm, file.base)
        if self._is_gone(file):
            return
        file.seals = self._store.seals
        damaged = [seal.base + block * BLOCK_BYTES for block in differing]
        self._store.reads.note_damage(file, damaged)

    async def _add(self, file: LogFile, found: FileSums) -> None:
        store = self._store
        made_ms = store.clock.wall_ms()
        seal = Seal(file.base, file.size_bytes, made_ms, found.summary, found.sums)
        await self._in_thread(store.seals.add, seal)
        if self._is_gone(file):
            return
        file.seals = store.seals
        logger.info("log_file_sealed path=%s", file.path)

    async def _in_thread(self, call: Callable[..., None], *values: object) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._store.executor, call, *values)

    def _is_gone(self, file: LogFile) -> bool:
        """Whether the file was dropped meanwhile; then its seal goes too."""
        if file.closed:
            self._store.seals.forget([file.base], durable=False)
        return file.closed

    def _refuse(self, file: LogFile, problem: str) -> None:
        self.refused.add(file.base)
        logger.error(
            "log_file_damaged path=%s problem=%r hint='cometmq store verify lists all damage'",
            file.path, problem,
        )  # fmt: skip


def is_stale(seal: Seal, differing: list[int], late_from: int) -> bool:
    """Whether another broker cut the sealed file and wrote on, which explains the differences.

    From ``late_from`` on every record was stored after the last one that was sealed; -1 when the
    last one was not. A flipped bit changes one block, and leaves those behind it as they were.
    """
    if late_from < 0:
        return False
    return all(seal.base + (block + 1) * BLOCK_BYTES > late_from for block in differing)
