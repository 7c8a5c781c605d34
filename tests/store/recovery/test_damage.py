"""Damage in the log, below and behind the point up to which it was safely on the device."""

import shutil
from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import BLANK, MAGIC_BLANK, Record, decode_one, pack
from cometmq.store.checkpoint import Checkpoint, read_positions, write_checkpoint
from cometmq.store.config import DamagePolicy
from cometmq.store.files import PosixFiles
from cometmq.store.layout import HOLE, HOLE_SIZE
from cometmq.store.log.scan import Resumption
from cometmq.store.recovery.damage import (
    FILLER_BYTES,
    Proof,
    filler,
    filler_sizes,
    hole_for,
    lost_tail,
)
from tests.store.damaged import FILE_BYTES, SKIP, TRUNCATE, Crashed, numbers
from tests.store.stores import (
    OtherBoot,
    assert_consistent,
    bodies,
    copied,
    entries_of,
    fill,
    opened,
)


@pytest.fixture
def crashed(tmp_path: Path) -> Crashed:
    return Crashed(tmp_path)


def test_below_the_proven_point_it_refuses_the_start(crashed: Crashed) -> None:
    record = crashed.damaged(160)
    before = crashed.log_files()
    with pytest.raises(StoreCorrupt) as caught:
        crashed.open()
    error = caught.value
    assert error.path == str(crashed.root / "commitlog" / f"{2 * FILE_BYTES:020d}")
    assert error.offset == record.physical_offset
    assert error.next_offset == record.physical_offset + record.size_bytes
    assert "magic is 0xda" in error.problem or "magic is 0x00" in error.problem
    assert f"up to offset {crashed.durable}" in error.problem
    assert f"{record.size_bytes} bytes further" in error.problem
    text = str(error)
    assert f"cometmq store repair {crashed.root} --damage skip --yes" in text
    assert "damagePolicy=truncate" in text
    assert crashed.log_files() == before


@pytest.mark.parametrize("damaged", [[150], [160], [171, 172], [160, 164], [189], [151, 188]])
def test_skipping_loses_the_damaged_records_alone(crashed: Crashed, damaged: list[int]) -> None:
    lost = [crashed.damaged(number) for number in damaged]
    store = crashed.open(SKIP)
    assert numbers(store) == [n for n in range(200) if n not in damaged]
    assert_consistent(store, lost=lost)
    assert store.report is not None
    runs = [n for n in damaged if n - 1 not in damaged]
    assert [damage.offset for damage in store.report.damages] == [
        crashed.records[n].physical_offset for n in runs
    ]
    assert sum(map(len, crashed.aside().values())) == sum(record.size_bytes for record in lost)
    for record in lost:
        entry = entries_of(store.queue("t", record.queue_id))[record.queue_offset]
        assert entry[1] == HOLE_SIZE
    fill(store, 20, first=200)
    store.close()
    again = opened(crashed.root, files=OtherBoot())
    assert again.report is not None
    assert again.report.damages == ()
    assert numbers(again) == [n for n in range(220) if n not in damaged]
    again.close()


def test_consumers_step_over_what_was_lost(crashed: Crashed) -> None:
    crashed.damaged(156)
    store = crashed.open(SKIP)
    expected = [n for n in range(0, 200, 3) if n != 156]
    assert [int(body[:6]) for body in bodies(store, "t", 0)] == expected
    assert [int(body[:6]) for body in bodies(store, "t", 0, 52)] == expected[52:]
    store.close()


def test_truncating_ends_the_log_before_the_damage(crashed: Crashed) -> None:
    record = crashed.damaged(160)
    store = crashed.open(TRUNCATE)
    assert numbers(store) == list(range(160))
    assert_consistent(store)
    assert store.report is not None
    assert (store.report.cut, store.report.end) == (record.physical_offset,) * 2
    assert store.report.shrunk
    kept = b"".join(crashed.aside().values())
    for lost in crashed.records[161:]:
        assert lost.body in kept
    fill(store, 30, first=500)
    assert len(assert_consistent(store)) == 190
    killed = opened(copied(crashed.root, "killed"))
    assert len(assert_consistent(killed)) == 190
    killed.close()
    store.close()
    again = opened(crashed.root)
    assert len(assert_consistent(again)) == 190
    again.close()


def test_a_truncation_over_files_moves_the_later_ones(tmp_path: Path) -> None:
    crashed = Crashed(tmp_path)
    (crashed.root / "cometmq-positions.json").unlink()
    write_checkpoint(PosixFiles(), str(crashed.root), Checkpoint(1 << 50, 0, 0), durable=False)
    crashed.damaged(20)
    with pytest.raises(StoreCorrupt, match="this part of the log had been synced"):
        crashed.open()
    store = crashed.open(TRUNCATE)
    assert numbers(store) == list(range(20))
    assert_consistent(store)
    names = list(crashed.aside())
    assert [name for name in names if name.endswith("-whole")] == [
        f"{FILE_BYTES:020d}-whole", f"{2 * FILE_BYTES:020d}-whole"
    ]  # fmt: skip
    assert sorted(path.name for path in (crashed.root / "commitlog").iterdir()) == [f"{0:020d}"]
    store.close()


def test_a_torn_end_is_no_damage(crashed: Crashed) -> None:
    crashed.damaged(199, 90, b"??")
    store = crashed.open()
    assert numbers(store) == list(range(199))
    assert crashed.aside() == {}
    assert store.report is not None
    assert store.report.torn
    store.close()


@pytest.mark.parametrize("data", [b"\0", bytes(200)])
def test_good_records_behind_a_torn_end_are_set_aside(
    crashed: Crashed, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    record = crashed.damaged(192, 4 if len(data) == 1 else 0, data)
    store = crashed.open()
    assert numbers(store) == list(range(192))
    assert_consistent(store)
    ((name, raw),) = crashed.aside().items()
    assert name == f"{record.physical_offset:020d}"
    assert decode_one(raw, crashed.records[195].physical_offset - record.physical_offset).body == (
        crashed.records[195].body
    )
    assert len(raw) <= crashed.end - record.physical_offset
    assert "valid records after it" in caplog.text
    store.close()


def test_a_process_crash_with_zeros_at_the_end_looks_no_further(crashed: Crashed) -> None:
    """While the machine runs nothing can be behind zeros."""
    crashed.damaged(192, 0, bytes(crashed.records[192].size_bytes))
    store = opened(crashed.root)
    assert numbers(store) == list(range(192))
    assert crashed.aside() == {}
    store.close()


def test_zeros_below_the_proven_point_are_damage_too(crashed: Crashed) -> None:
    record = crashed.damaged(160, 0, bytes(crashed.records[160].size_bytes))
    with pytest.raises(StoreCorrupt) as caught:
        crashed.open()
    assert caught.value.offset == record.physical_offset
    store = crashed.open(SKIP)
    assert len(assert_consistent(store, lost=[record])) == 200
    store.close()


def test_a_last_record_of_a_file(crashed: Crashed) -> None:
    """Behind it comes a blank; with the blank gone too, a new one is made."""
    last = max(n for n, r in enumerate(crashed.records) if r.physical_offset < 2 * FILE_BYTES)
    assert 130 < last < 190
    record = crashed.damaged(last, 0, bytes(50))
    blank = record.physical_offset + record.size_bytes
    store = crashed.open(SKIP)
    assert numbers(store) == [n for n in range(200) if n != last]
    assert decode_one(store.log.view(record.physical_offset, record.size_bytes) or b"").body != b""
    store.close()
    shutil.rmtree(crashed.root)
    again = Crashed(crashed.root.parent / "again")
    again.damaged(last, 0, bytes(2 * FILE_BYTES - record.physical_offset))
    store = again.open(SKIP)
    assert numbers(store) == [n for n in range(200) if n != last]
    room = 2 * FILE_BYTES - record.physical_offset
    assert bytes(store.log.view(record.physical_offset, 8) or b"") == BLANK.pack(room, MAGIC_BLANK)
    assert blank > record.physical_offset
    store.close()


def test_damage_over_the_end_of_a_file(crashed: Crashed) -> None:
    last = max(n for n, r in enumerate(crashed.records) if r.physical_offset < 2 * FILE_BYTES)
    start = crashed.records[last].physical_offset
    crashed.damaged(last, 0, b"?" * (2 * FILE_BYTES - start))
    crashed.damaged(last + 1, 0, b"?" * 40)
    store = crashed.open(SKIP)
    assert numbers(store) == [n for n in range(200) if n not in (last, last + 1)]
    assert_consistent(store, lost=crashed.records[last : last + 2])
    store.close()


@pytest.mark.parametrize("policy", [SKIP, TRUNCATE])
def test_damage_without_anything_behind_it_ends_the_log(
    crashed: Crashed, policy: DamagePolicy
) -> None:
    offset = crashed.records[185].physical_offset
    crashed.damaged(185, 0, b"?" * (3 * FILE_BYTES - offset))
    with pytest.raises(StoreCorrupt, match="No valid record follows"):
        crashed.open()
    store = crashed.open(policy)
    assert numbers(store) == list(range(185))
    assert_consistent(store)
    assert store.report is not None
    assert store.report.cut == offset
    store.close()


def test_what_the_queues_tell_of_a_record_is_damage_when_it_is_impossible(
    crashed: Crashed,
) -> None:
    """Its CRC covers the body only: an offset far beyond would fill the memory with holes."""
    record = crashed.damaged(160, 21, b"\x40")
    with pytest.raises(StoreCorrupt, match="its queue offset is") as caught:
        crashed.open()
    assert caught.value.offset == record.physical_offset
    store = crashed.open(SKIP)
    assert numbers(store) == [n for n in range(200) if n != 160]
    store.close()


def test_a_start_that_ends_half_way_does_not_hide_the_loss(crashed: Crashed) -> None:
    """The policy was to truncate; the process is killed right after that was noted."""
    record = crashed.damaged(160)

    class Killed(OtherBoot):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if target.endswith("positions.json"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(crashed.root, files=Killed(), damage_policy=TRUNCATE)
    noted = read_positions(PosixFiles(), str(crashed.root))
    assert noted is not None
    assert (noted.durable, noted.clean) == (record.physical_offset, False)
    store = crashed.open()
    assert numbers(store) == list(range(160))
    assert_consistent(store)
    assert b"".join(crashed.aside().values()).count(crashed.records[170].body) >= 1
    store.close()


def test_a_java_store_proves_by_its_checkpoint(crashed: Crashed) -> None:
    (crashed.root / "cometmq-positions.json").unlink()
    record = crashed.damaged(100)
    store_ms = record.store_ms
    files = PosixFiles()
    write_checkpoint(files, str(crashed.root), Checkpoint(store_ms, 0, 0), durable=False)
    copy = copied(crashed.root, "unproven")
    write_checkpoint(files, str(crashed.root), Checkpoint(store_ms + 3_000, 0, 0), durable=False)
    with pytest.raises(StoreCorrupt) as caught:
        crashed.open()
    assert caught.value.offset == record.physical_offset
    store = opened(copy, files=OtherBoot())
    assert numbers(store) == list(range(100))
    assert list((copy / "cometmq-set-aside").iterdir())
    store.close()


@pytest.mark.parametrize("size", [91, 92, 93, 1_000, FILLER_BYTES])
def test_a_filler_is_a_record_in_no_queue(size: int) -> None:
    raw = filler(777, size, 5)
    record = decode_one(raw)
    assert (record.size_bytes, record.physical_offset, record.store_ms) == (size, 777, 5)
    assert record.sys_flag == 0x4
    assert record.properties == b""
    assert len(raw) == size


@pytest.mark.parametrize("size", [91, 92, FILLER_BYTES, FILLER_BYTES + 1, 3 * FILLER_BYTES + 40])
def test_long_damage_takes_several_fillers(size: int) -> None:
    found = list(filler_sizes(1_000, 1_000 + size))
    assert found[0][0] == 1_000
    assert [a + n for a, n in found] == [*[a for a, _ in found[1:]], 1_000 + size]
    assert all(91 <= n <= FILLER_BYTES for _, n in found)


def test_a_hole_names_the_file_before() -> None:
    assert hole_for(5_000, 16_384) == HOLE
    assert hole_for(16_384 * 2 + 7, 16_384)[:8] == (16_384).to_bytes(8, "big")
    assert hole_for(16_384 * 2 + 7, 16_384)[8:] == HOLE[8:]


@pytest.mark.parametrize(
    ("offset", "found", "covered"),
    [
        (99, None, True),
        (100, None, False),
        (100, Resumption(200, 50), True),
        (100, Resumption(200, 51), False),
        (100, Resumption(200, 0), False),
    ],
)
def test_what_is_proven(offset: int, found: Resumption | None, covered: bool) -> None:
    assert Proof(100, 50).covers(offset, found) is covered


@pytest.mark.parametrize(
    ("beyond", "zeros", "lost"),
    [(30, 30, True), (30, 60, True), (30, 29, False), (30, 0, False), (-300, 60, False)],
)
def test_a_sector_that_was_not_written_at_the_end_of_a_record(
    beyond: int, zeros: int, lost: bool
) -> None:
    """``beyond`` of its bytes lie in the next sector; ``zeros`` stand at its end."""
    host, properties = bytes(8), b"p" * (60 - zeros) + bytes(zeros)
    raw = pack(Record(0, 0, 0, 0, 0, 0, 0, 0, host, 0, host, 0, 0, b"body", "topic", properties))
    assert lost_tail(decode_one(raw), 1024 - len(raw) + beyond) is lost
