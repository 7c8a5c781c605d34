"""Each byte of the small files flipped, and each field of a record: the store starts with what it
had, or says exactly why it does not; and a repair brings everything back in line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import Record
from cometmq.store.config import DamagePolicy, StoreConfig
from cometmq.store.files import PosixFiles
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.opening import Rebuild, open_store
from tests.store.stores import (
    OtherBoot,
    assert_consistent,
    fill,
    log_of,
    opened,
    run_round,
)

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 12,
    "max_hash_slot_num": 4,
    "max_index_num": 14,
}
COUNT = 30
#: The fields of a record with IPv4 hosts, by their first byte; (name, position, bytes).
FIELDS = [
    ("size", 0, 4), ("magic", 4, 4), ("crc", 8, 4), ("queue id", 12, 4), ("flag", 16, 4),
    ("queue offset", 20, 8), ("physical offset", 28, 8), ("sysFlag", 36, 4),
    ("born timestamp", 40, 8), ("born host", 48, 8), ("store timestamp", 56, 8),
    ("store host", 64, 8), ("reconsume times", 72, 4), ("prepared offset", 76, 8),
    ("body length", 84, 4), ("body", 88, 1), ("topic length", -1, 1), ("topic", -2, 1),
    ("properties length", -3, 2), ("properties", -4, 1),
]  # fmt: skip
#: Those that contradict something when they are changed.
CHECKED = {
    "size", "magic", "crc", "physical offset", "body length", "body", "topic length",
    "properties length",
}  # fmt: skip


class Golden:
    """A small store, kept file by file, so that each case begins with the same one.

    Synced up to ``synced``, the log durable up to ``durable``, unless it was stopped.
    """

    def __init__(self, root: Path, *, clean: bool) -> None:
        self.clean = clean
        made = root / "made"
        store = opened(made, **SIZES)
        fill(store, 20)
        run_round(store, thorough=True)
        self.synced = store.written_offset
        fill(store, 5, first=20)
        store.flusher.sync_now()
        run_round(store)
        self.durable = store.durable_offset
        fill(store, 5, first=25)
        self.records = log_of(store)
        if clean:
            store.close()
        files = [path for path in made.rglob("*") if path.is_file()]
        self._kept = {path.relative_to(made): path.read_bytes() for path in files}
        store.close()
        self.root = root / "case"
        self.restore()

    def restore(self) -> None:
        """Every file as it was, and no others."""
        for path in self.root.rglob("*"):
            if path.is_file():
                path.unlink()
        for name, raw in self._kept.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)

    def names(self, folder: str) -> list[str]:
        """The files below a folder, in order."""
        return sorted(str(name) for name in self._kept if str(name).startswith(folder))

    def places(self, name: str) -> range:
        """All bytes of a file; after a crash, where most is read again, every third."""
        return range(0, len(self._kept[Path(name)]), 1 if self.clean else 3)

    def flips(self, name: str, places: range) -> Iterator[str]:
        """Flip bytes of a file, one at a time; before each one, all is as it was."""
        for at in places:
            self.restore()
            self.flip(name, at, 1 << at % 8)
            yield f"{name} at {at}"

    def flip(self, name: Path | str, at: int, bits: int) -> None:
        """Change one byte of a file."""
        raw = bytearray(self._kept[Path(name)])
        raw[at] ^= bits
        (self.root / name).write_bytes(raw)

    def flip_field(self, record: Record, position: int) -> None:
        """Change one byte of a record; negative positions count its variable fields."""
        body = record.physical_offset + 88 + len(record.body)
        properties = body + 1 + len(record.topic)
        places = {-1: body, -2: body + 1, -3: properties, -4: properties + 2}
        offset = places.get(position, record.physical_offset + position)
        self.flip(f"commitlog/{offset // 4096 * 4096:020d}", offset % 4096, 0x10)

    def bodies(self) -> list[bytes]:
        """What messages there are."""
        return [record.body for record in self.records]


@pytest.fixture(scope="module", params=["clean", "killed"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(tmp_path_factory.mktemp(request.param), clean=request.param == "clean")


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(tmp_path_factory.mktemp("crashed"), clean=False)


def check_start(store: MessageStore, golden: Golden, case: str) -> None:
    """All messages are there, and the next ones get their offsets."""
    assert [record.body for record in log_of(store)] == golden.bodies(), case
    for queue_id in range(3):
        assert store.queue("t", queue_id).next_offset == COUNT // 3, case


def repaired(root: Path) -> MessageStore:
    """The store with all queues and the index made again."""
    everything = Rebuild(frozenset(("t", number) for number in range(3)), True, 0)
    settings = StoreConfig(str(root), **SIZES)
    return open_store(settings, VirtualClock(), PosixFiles(), everything)


@pytest.mark.parametrize(
    ("folder", "number"), [("consumequeue/t/1/", 0), ("index/", 0), ("index/", -1)]
)
def test_every_byte_of_queue_and_index_files(golden: Golden, folder: str, number: int) -> None:
    name = golden.names(folder)[number]
    for case in golden.flips(name, golden.places(name)):
        store = opened(golden.root, **SIZES)
        check_start(store, golden, case)
        store.close()
    again = repaired(golden.root)
    assert len(assert_consistent(again)) == COUNT
    again.close()


@pytest.mark.parametrize(
    ("name", "places"), [("cometmq-positions.json", range(0, 300, 3)), ("checkpoint", range(24))]
)
def test_bytes_of_the_notes(golden: Golden, name: str, places: range) -> None:
    """That each byte of the positions counts is for test_checkpoint.py to see."""
    for case in golden.flips(name, places):
        store = opened(golden.root, **SIZES)
        check_start(store, golden, case)
        assert store.state.last_ms == golden.records[-1].store_ms, case
        store.close()


@pytest.mark.parametrize("name", ["abort", "lock", "checkpoint", "cometmq-positions.json"])
@pytest.mark.parametrize("content", [None, b"", b"\0" * 4096, b"\xff" * 30, b"{" * 3_000_000])
def test_notes_that_are_something_else(golden: Golden, name: str, content: bytes | None) -> None:
    golden.restore()
    path = golden.root / name
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)
    store = opened(golden.root, **SIZES)
    check_start(store, golden, name)
    assert_consistent(store)
    store.close()


@pytest.mark.parametrize("name", ["abort", "lock", "checkpoint", "cometmq-positions.json"])
def test_folders_in_the_place_of_notes(golden: Golden, name: str) -> None:
    """Nothing can be written there, so the start ends, with the path."""
    golden.restore()
    (golden.root / name).unlink(missing_ok=True)
    (golden.root / name).mkdir()
    with pytest.raises(OSError, match=name):
        opened(golden.root, **SIZES).close()
    (golden.root / name).rmdir()


@pytest.mark.parametrize(("name", "position"), [field[:2] for field in FIELDS])
def test_fields_of_a_record_in_a_full_file(golden: Golden, name: str, position: int) -> None:
    """A start does not read it; whoever reads all of the log finds what contradicts itself."""
    golden.restore()
    record = golden.records[7]
    golden.flip_field(record, position)
    opened(golden.root, **SIZES).close()
    settings = StoreConfig(str(golden.root), **SIZES)
    reading = Rebuild(log_from=0)
    if name not in CHECKED:
        open_store(settings, VirtualClock(), PosixFiles(), reading).close()
        return
    with pytest.raises(StoreCorrupt) as caught:
        open_store(settings, VirtualClock(), PosixFiles(), reading)
    assert caught.value.path == str(golden.root / "commitlog" / f"{0:020d}")
    assert caught.value.offset == record.physical_offset
    assert caught.value.next_offset == record.physical_offset + record.size_bytes


@pytest.mark.parametrize("place", ["proven", "unproven"])
@pytest.mark.parametrize(("name", "position"), [field[:2] for field in FIELDS])
def test_fields_of_a_record_that_the_start_reads(
    crashed: Golden, name: str, position: int, place: str
) -> None:
    crashed.restore()
    number = 22 if place == "proven" else 27
    record = crashed.records[number]
    assert (record.physical_offset < crashed.durable) is (place == "proven")
    crashed.flip_field(record, position)
    caught: StoreCorrupt | None = None
    try:
        store = opened(crashed.root, files=OtherBoot(), **SIZES)
    except StoreCorrupt as error:
        caught = error
        store = opened(crashed.root, files=OtherBoot(), damage_policy=DamagePolicy.SKIP, **SIZES)
    # A queue that is read up to there has no room for so many records in between.
    is_found = name in CHECKED or name == "queue offset"
    assert (caught is not None) is (is_found and place == "proven")
    if caught is not None:
        base = record.physical_offset // 4096 * 4096
        assert caught.path == str(crashed.root / "commitlog" / f"{base:020d}")
        assert caught.offset == record.physical_offset
    bodies = crashed.bodies()
    if is_found and place == "proven":
        del bodies[number]
    elif is_found:
        del bodies[number:]
        assert list((crashed.root / "cometmq-set-aside").iterdir())
    assert [each.body for each in log_of(store) if each.properties] == bodies
    store.close()
