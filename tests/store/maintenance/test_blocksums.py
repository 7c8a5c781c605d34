"""What the child of the scrub reads, and how fast."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from cometmq.core.clock import VirtualClock
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.log.checksums import BLOCK_BYTES, sums_of
from cometmq.store.maintenance.checksumming import read_block_sums

CONTENT = bytes(range(251)) * 4_000


class Device(ReadOnlyFiles):
    """Has a block that cannot be read, and says what the system was told to forget."""

    __slots__ = ("bad", "dropped", "in_memory")

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad
        self.in_memory: set[int] = set()
        self.dropped: list[tuple[int, int]] = []

    def read_cached(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        return self.pread_into(handle, buffer, offset) if offset in self.in_memory else 0

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        if offset == self.bad:
            raise OSError(errno.EIO, "no")
        return self.pread_into(handle, buffer, offset)

    def pread_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        return super().read_into(handle, buffer, offset)

    def drop_cached(self, handle: int, offset: int, size_bytes: int) -> None:
        super().drop_cached(handle, offset, size_bytes)
        self.dropped.append((offset, size_bytes))


def made(tmp_path: Path) -> str:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return str(path)


async def read(device: Device, path: str, size_bytes: int = len(CONTENT)) -> bytes:
    return await read_block_sums(device, VirtualClock(), path, size_bytes, 1 << 40)


async def test_what_was_not_in_memory_is_not_left_there(tmp_path: Path) -> None:
    device = Device()
    device.in_memory = {0, 5 * BLOCK_BYTES}
    assert await read(device, made(tmp_path)) == sums_of(CONTENT)
    blocks = range(0, len(CONTENT), BLOCK_BYTES)
    assert device.dropped == [
        (at, min(BLOCK_BYTES, len(CONTENT) - at)) for at in blocks if at not in device.in_memory
    ]


async def test_blocks_that_are_not_there(tmp_path: Path) -> None:
    path = made(tmp_path)
    sums = sums_of(CONTENT)
    assert await read(Device(bad=BLOCK_BYTES), path) == sums[:4] + bytes(4) + sums[8:]
    longer = len(CONTENT) + 3 * BLOCK_BYTES
    assert await read(Device(), path, longer) == sums + bytes(12)


async def test_it_keeps_to_its_rate(tmp_path: Path) -> None:
    clock = VirtualClock()
    begun_ms = clock.monotonic_ms()
    rate = len(CONTENT) // 10
    reading = asyncio.create_task(
        read_block_sums(Device(), clock, made(tmp_path), len(CONTENT), rate)
    )
    async with asyncio.timeout(60):
        while not reading.done():
            await asyncio.sleep(0)
            clock.advance(1)
    assert 10_000 <= clock.monotonic_ms() - begun_ms <= 10_100
