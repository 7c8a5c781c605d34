"""Verifying small stores in tests, and changing their files."""

from __future__ import annotations

import shutil
from pathlib import Path

from cometmq.core.clock import VirtualClock
from cometmq.message.record import Record
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.tools.findings import Finding, Severity
from cometmq.store.tools.verify import Verified, verify
from tests.store.sealed import FILE_BYTES, seal_all
from tests.store.stores import fill, log_of, opened

#: Where fields of a record with IPv4 hosts begin.
FIELDS = {
    "size": 0, "magic": 4, "crc": 8, "queue": 12, "flag": 16, "queue offset": 20,
    "physical offset": 28, "system flag": 36, "born time": 40, "born host": 48,
    "store time": 56, "store host": 64, "reconsume times": 72, "prepared offset": 76,
    "body length": 84, "body": 88,
}  # fmt: skip


def verified(root: Path, *, full: bool = False, processes: int = 1) -> Verified:
    """Verify, and see that nothing was written meanwhile."""
    before = contents(root)
    found = verify(
        StoreConfig(store_path_root_dir=str(root)), ReadOnlyFiles(), full=full, processes=processes
    )
    assert contents(root) == before
    return found


def contents(root: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change of every file."""
    found = {}
    for path in root.rglob("*"):
        state = path.stat()
        found[path] = (state.st_size, state.st_mtime_ns)
    return found


def damage(found: Verified) -> list[Finding]:
    """What is damaged."""
    return [each for each in found.findings if each.severity is Severity.DAMAGE]


def kinds(found: Verified) -> set[str]:
    """The kinds of everything found."""
    return {each.kind for each in found.findings}


def written(root: Path, *, sealed: bool) -> Path:
    """A directory with a store that was stopped: three queues, keys, several files of each kind."""
    clock = VirtualClock()
    store = opened(
        root, clock, mapped_file_size_commit_log=FILE_BYTES, max_hash_slot_num=500,
        max_index_num=1_500, mapped_file_size_consume_queue=20 * 500,
    )  # fmt: skip
    for first in range(0, 2_500, 500):
        fill(store, 500, first=first)
        clock.advance(1_700)
    store.flusher.sync_now()
    if sealed:
        seal_all(store)
    store.close()
    return root


def flip_byte(path: Path, at: int, bits: int = 0x10) -> None:
    """Change one byte of a file; done twice it is as before."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bits]))


def records_in(root: Path) -> list[Record]:
    store = opened(
        shutil.copytree(root, root.parent / "read"), VirtualClock(),
        mapped_file_size_commit_log=FILE_BYTES, max_hash_slot_num=500, max_index_num=1_500,
        mapped_file_size_consume_queue=20 * 500,
    )  # fmt: skip
    found = log_of(store)
    store.close()
    return found


def log_file(root: Path, offset: int) -> tuple[Path, int]:
    """The file that holds a physical offset, and where in it."""
    base = offset - offset % FILE_BYTES
    return root / "commitlog" / f"{base:020d}", offset - base


def field_bytes(record: Record) -> list[tuple[str, int]]:
    """The first and the last byte of every field of a record."""
    topic_at = 88 + len(record.body)
    fields = FIELDS | {
        "topic length": topic_at,
        "topic": topic_at + 1,
        "properties length": topic_at + 2,
        "properties": topic_at + 4,
    }
    ends = [*list(fields.values())[1:], record.size_bytes]
    pairs = zip(fields.items(), ends, strict=True)
    return [(name, at) for (name, first), end in pairs for at in {first, end - 1}]


def another_broker(root: Path) -> None:
    """Leave the checkpoint as another broker would."""
    flip_byte(root / "checkpoint", 7, 0x01)
