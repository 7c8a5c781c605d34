"""Small stores whose full log files have seals, made without a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.core.clock import VirtualClock
from cometmq.store.log.checksums import Seal, Summary, sums_of
from cometmq.store.messagestore import MessageStore
from cometmq.store.tools.sums import read_sums
from tests.store.stores import fill, opened

FILE_BYTES = 4 * 65_536


NOTHING = Summary(0, -1, -1, 0, 0, 0, 0)


def seal_of(base: int, content: bytes) -> Seal:
    """A seal for any bytes, with no records in them."""
    return Seal(base, len(content), 5, NOTHING, sums_of(content))


def seal_all(store: MessageStore) -> list[int]:
    """Seal every full file that has no seal; gives where they begin."""
    done: list[int] = []
    for file in store.log.segments.files:
        if file.end <= store.log.written and file.seals is None:
            levels = store.config.message_delay_level
            found = read_sums(store.files, file.path, file.base, file.size_bytes, 0, levels)
            assert not found.problem
            store.seals.add(
                Seal(file.base, file.size_bytes, store.state.last_ms, found.summary, found.sums)
            )
            file.seals = store.seals
            done.append(file.base)
    return done


def sealed_store(root: Path, **changes: Any) -> MessageStore:
    """A store with messages in several files, all full ones sealed."""
    store = opened(root, mapped_file_size_commit_log=FILE_BYTES, **changes)
    fill(store, 2_500, queues=3)
    store.flusher.sync_now()
    assert len(seal_all(store)) >= 2
    return store


def reopened(root: Path, **changes: Any) -> MessageStore:
    """The same directory again."""
    return opened(root, VirtualClock(), mapped_file_size_commit_log=FILE_BYTES, **changes)


def flip(root: Path, offset: int, bits: int = 0x10) -> None:
    """Change one byte of the log on disk."""
    path = root / "commitlog" / f"{offset - offset % FILE_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(offset % FILE_BYTES)
        byte = file.read(1)[0]
        file.seek(offset % FILE_BYTES)
        file.write(bytes([byte ^ bits]))


async def scrub(store: MessageStore) -> None:
    """Compare all sealed files with their seals, without a child process."""
    assert isinstance(store.clock, VirtualClock)
    store.maintenance.scrub.read = block_sums
    store.clock.advance(store.config.scrub_interval_hours * 3_600_000)
    await store.maintenance.scrub.compare_files()


async def block_sums(path: str, _size_bytes: int, _bytes_per_s: int) -> bytes:
    """What the child of the scrub gives."""
    with open(path, "rb") as file:  # noqa: ASYNC230
        return sums_of(file.read())
