"""Units beside queue entries: written as a Java broker does, and resolved wherever entries are
read."""

import asyncio
import errno
import os
import shutil
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from cometmq.filter.tags import tag_code
from cometmq.message.record import iter_decode
from cometmq.store.config import StoreConfig
from cometmq.store.files import PosixFiles, ReadOnlyFiles
from cometmq.store.layout import (
    EXTENSION_UNIT,
    EXTENSIONS,
    MAX_UNIT_ADDRESS,
    QUEUE_ENTRY,
    file_name,
)
from cometmq.store.messagestore import MessageStore
from cometmq.store.queue.extensions import find_file_bytes
from cometmq.store.read.reader import ReadStatus
from cometmq.store.tools.findings import Severity
from cometmq.store.tools.verify import verify
from tests.store.stores import (
    assert_consistent,
    config,
    copied,
    entries_of,
    fill,
    log_of,
    opened,
    put,
    run_round,
)

UNIT_FILE_BYTES = 1024
#: Units in a file of that size: 20 bytes each, and 4 unused ones at its end.
UNITS_A_FILE = 51
ON: dict[str, Any] = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": UNIT_FILE_BYTES,
}


def raw_entries(root: Path, queue_id: int, topic: str = "t") -> list[tuple[int, int, int]]:
    """The entries in the files, as they are there."""
    found: list[tuple[int, int, int]] = []
    for path in sorted((root / "consumequeue" / topic / str(queue_id)).iterdir()):
        found += [each for each in QUEUE_ENTRY.iter_unpack(path.read_bytes()) if each[1]]
    return found


def unit_at(root: Path, queue_id: int, address: int) -> tuple[int, int, int, int]:
    """The unit at an address, read as a Java broker does."""
    offset = address + (1 << 63)
    base = offset - offset % UNIT_FILE_BYTES
    path = root / EXTENSIONS / "t" / str(queue_id) / file_name(base)
    found: tuple[int, int, int, int] = EXTENSION_UNIT.unpack_from(path.read_bytes(), offset - base)
    return found


def check_units(root: Path, store: MessageStore) -> int:
    """Each entry with an address leads to a unit of its record; gives their number."""
    records = {record.physical_offset: record for record in log_of(store)}
    count = 0
    for queue_id in range(3):
        addresses = []
        for place, _, code in raw_entries(root, queue_id):
            if code > MAX_UNIT_ADDRESS or place not in records:
                continue
            record = records[place]
            tag = tag_code(f"g{int(record.body[:6]) % 4}")
            assert unit_at(root, queue_id, code) == (20, tag, record.store_ms, 0)
            addresses.append(code)
        assert all(low < high for low, high in pairwise(addresses))
        count += len(addresses)
    return count


def matching(store: MessageStore, tag: str) -> list[int]:
    """The numbers of the messages of a tag, as a filtered read chooses them."""

    async def read_all(queue_id: int) -> list[int]:
        found: list[int] = []
        offset = store.queue("t", queue_id).min_offset
        while offset < store.queue("t", queue_id).max_offset:
            result = store.read("t", queue_id, offset, 32, codes=frozenset({tag_code(tag)}))
            if result.cold:
                await store.load(result)
            assert result.status in (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE)
            for chunk in result.chunks:
                found += [int(record.body[:6]) for record in iter_decode(chunk)]
            assert result.next_offset > offset
            offset = result.next_offset
        return found

    return sorted(chain.from_iterable(asyncio.run(read_all(each)) for each in range(3)))


def numbers_of(tag: int, count: int) -> list[int]:
    return [number for number in range(count) if number % 4 == tag]


def check_tools(root: Path) -> None:
    """`store verify` finds the entries right."""
    report = verify(config(root), full=True)
    assert [each for each in report.findings if each.kind.startswith("queue")] == []


def test_entries_get_units_and_are_read_with_their_codes(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **ON)
    fill(store, 600)
    assert matching(store, "g1") == numbers_of(1, 600)
    run_round(store, thorough=True)
    assert check_units(tmp_path / "s", store) == 600
    store.close()
    names = sorted(os.listdir(tmp_path / "s" / EXTENSIONS / "t" / "0"))
    assert names == [file_name(base) for base in range(0, 4 * UNIT_FILE_BYTES, UNIT_FILE_BYTES)]
    first = (tmp_path / "s" / EXTENSIONS / "t" / "0" / names[0]).read_bytes()
    assert len(first) == UNIT_FILE_BYTES
    assert first[UNITS_A_FILE * 20 :] == b"\xff\xff\0\0"
    check_tools(tmp_path / "s")
    for changes in (ON, {}):
        store = opened(tmp_path / "s", **changes)
        assert matching(store, "g2") == numbers_of(2, 600)
        assert_consistent(store)
        store.close()


def test_nothing_is_there_unless_it_is_asked_for(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    fill(store, 30)
    run_round(store)
    store.close()
    assert not (tmp_path / "s" / EXTENSIONS).exists()


def test_units_continue_after_a_start_a_crash_and_a_pause(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **ON)
    fill(store, 100)
    run_round(store, thorough=True)
    fill(store, 100, first=100)
    run_round(store)
    copy = copied(tmp_path / "s", "killed")
    store.close()
    store = opened(copy, **ON)
    fill(store, 100, first=200)
    run_round(store, thorough=True)
    assert check_units(copy, store) == 300
    store.close()
    store = opened(copy)  # the setting is off: plain codes follow
    fill(store, 100, first=300)
    assert matching(store, "g3") == numbers_of(3, 400)
    store.close()
    store = opened(copy, **ON)
    fill(store, 100, first=400)
    assert matching(store, "g0") == numbers_of(0, 500)
    run_round(store, thorough=True)
    assert check_units(copy, store) == 400
    assert_consistent(store)
    store.close()
    check_tools(copy)


def test_units_that_a_crash_left_are_cut(tmp_path: Path) -> None:
    """As upstream truncates at the last address."""
    root = tmp_path / "s"
    store = opened(root, **ON)
    fill(store, 30)
    store.close()
    path = root / EXTENSIONS / "t" / "0" / file_name(0)
    raw = bytearray(path.read_bytes())
    raw[200:240] = EXTENSION_UNIT.pack(20, 7, 7, 0) * 2
    path.write_bytes(raw)
    (path.parent / file_name(UNIT_FILE_BYTES)).write_bytes(raw)
    store = opened(root, **ON)
    fill(store, 3, first=30)
    run_round(store)
    assert check_units(root, store) == 33
    assert path.read_bytes()[220:] == bytes(UNIT_FILE_BYTES - 220)
    assert os.listdir(path.parent) == [file_name(0)]
    store.close()


@pytest.mark.parametrize("changes", [ON, {}])
def test_missing_units_are_made_from_the_records(tmp_path: Path, changes: dict[str, Any]) -> None:
    root = tmp_path / "s"
    store = opened(root, **ON)
    fill(store, 300)
    store.close()
    for path in (root / EXTENSIONS / "t" / "0").iterdir():
        path.write_bytes(bytes(UNIT_FILE_BYTES))
    shutil.rmtree(root / EXTENSIONS / "t" / "1")
    store = opened(root, **changes)
    assert matching(store, "g1") == numbers_of(1, 300)
    fill(store, 300, first=300)
    run_round(store)
    assert matching(store, "g1") == numbers_of(1, 600)
    assert_consistent(store)
    store.close()
    store = opened(root, **changes)
    assert matching(store, "g1") == numbers_of(1, 600)
    store.close()


@pytest.mark.parametrize("keeps_one", [True, False])
def test_verify_takes_the_codes_of_lost_units_from_the_records(
    tmp_path: Path, keeps_one: bool
) -> None:
    root = tmp_path / "s"
    store = opened(root, **ON)
    fill(store, 300)
    put(store, "t", 0, b"000300")  # without a tag
    store.commit()
    store.close()
    for path in (root / EXTENSIONS / "t" / "0").iterdir():
        path.write_bytes(bytes(UNIT_FILE_BYTES))
    shutil.rmtree(root / EXTENSIONS / "t" / "1")
    if not keeps_one:
        shutil.rmtree(root / EXTENSIONS)
    for full in (True, False):
        found = [each for each in verify(config(root), full=full).findings if "queue" in each.kind]
        assert {each.kind for each in found} == {"queue-unit-lost"}
        assert {each.severity for each in found} == {Severity.NOTE}
        assert [each.count for each in found] == ([101, 100] if keeps_one else [101, 100, 100])


def test_units_with_bit_maps_are_read(tmp_path: Path) -> None:
    """A Java broker with enableCalcFilterBitMap writes longer units."""
    root = tmp_path / "s"
    store = opened(root)
    fill(store, 60)
    store.close()
    for queue_id in range(3):
        path = root / "consumequeue" / "t" / str(queue_id) / file_name(0)
        raw, units = bytearray(path.read_bytes()), bytearray()
        for at in range(0, 400, 20):
            place, size, code = QUEUE_ENTRY.unpack_from(raw, at)
            QUEUE_ENTRY.pack_into(raw, at, place, size, len(units) - (1 << 63))
            units += EXTENSION_UNIT.pack(28, code, 1, 8) + b"\xff" * 8
        path.write_bytes(raw)
        folder = root / EXTENSIONS / "t" / str(queue_id)
        folder.mkdir(parents=True)
        (folder / file_name(0)).write_bytes(units.ljust(UNIT_FILE_BYTES, b"\0"))
    assert find_file_bytes(ReadOnlyFiles(), str(root)) == UNIT_FILE_BYTES
    # The length of the files there counts, not the setting.
    store = opened(root, enable_consume_queue_ext=True)
    assert matching(store, "g2") == numbers_of(2, 60)
    fill(store, 3, first=60)
    run_round(store)
    assert unit_at(root, 0, 20 * 28 - (1 << 63))[:2] == (20, tag_code("g0"))
    assert_consistent(store)
    store.close()
    check_tools(root)


def test_units_have_bit_maps(tmp_path: Path) -> None:
    """The bits of a filter are set where it matches; files end where a Java broker ends them."""
    root = tmp_path / "s"
    store = opened(root, **ON)
    fill(store, 30)
    run_round(store)
    maps = store.bit_maps
    assert maps is not None
    maps.begin(80)
    maps.put("t", "g", "TAGS = 'g1'", (3, 70))
    fill(store, 170, first=30)
    run_round(store)
    maps.drop("t", "g")
    fill(store, 30, first=200)
    run_round(store)
    bits = (1 << 3 | 1 << 70).to_bytes(10, "little")
    for queue_id in range(3):
        units = b"".join(
            (root / EXTENSIONS / "t" / str(queue_id) / file_name(base)).read_bytes()
            for base in range(0, 3 * UNIT_FILE_BYTES, UNIT_FILE_BYTES)
        )
        entries = raw_entries(root, queue_id)
        assert len(entries) == (77, 77, 76)[queue_id]
        end = 0
        for at, (_, _, address) in enumerate(entries):
            number = 3 * at + queue_id
            has_bits = 30 <= number < 200
            size = 30 if has_bits else 20
            if end % UNIT_FILE_BYTES + size + 4 > UNIT_FILE_BYTES:
                assert units[end : end + 2] == b"\xff\xff"
                end += UNIT_FILE_BYTES - end % UNIT_FILE_BYTES
            assert address + (1 << 63) == end
            found = EXTENSION_UNIT.unpack_from(units, end)
            assert found[0] == size
            assert found[3] == (10 if has_bits else 0)
            if has_bits:
                assert units[end + 20 : end + 30] == (bits if number % 4 == 1 else bytes(10))
            end += size
    assert matching(store, "g1") == numbers_of(1, 230)
    assert_consistent(store)
    store.close()
    check_tools(root)


def test_a_bit_map_that_no_file_can_hold_is_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **ON)
    maps = store.bit_maps
    assert maps is not None
    maps.begin(8 * UNIT_FILE_BYTES)
    maps.put("t", "g", "TAGS = 'g1'", (3, 70))
    fill(store, 60)
    run_round(store)
    assert check_units(tmp_path / "s", store) == 60
    store.close()


def test_units_go_with_their_queue_files(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", **ON)
    fill(store, 600)
    run_round(store, thorough=True)
    folder = tmp_path / "s" / EXTENSIONS / "t" / "0"
    assert len(os.listdir(folder)) == 4
    queue = store.queue("t", 0)
    place = entries_of(queue)[150][0]
    queue.correct_min(place)
    assert queue.min_offset == 150
    assert sorted(os.listdir(folder))[0] == file_name(2 * UNIT_FILE_BYTES)
    assert [code for _, _, code in entries_of(queue)] == [
        tag_code(f"g{3 * number % 4}") for number in range(150, 200)
    ]
    store.close()


def test_units_go_with_their_topic(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root, **ON)
    fill(store, 60)
    run_round(store)
    store.deletions.delete("t")
    assert os.listdir(root / EXTENSIONS / "t") == []
    put(store, "t", 0, b"000001", tag="g1")
    store.commit()
    run_round(store)
    [(_, _, code)] = raw_entries(root, 0)
    assert unit_at(root, 0, code)[:2] == (20, tag_code("g1"))
    store.close()


def test_an_entry_that_is_replaced_keeps_its_code(tmp_path: Path) -> None:
    """Addresses increase, so that the last one is the end of the units."""
    root = tmp_path / "s"
    store = opened(root, **ON)
    fill(store, 60)
    run_round(store)
    queue = store.queue("t", 0)
    place, size, code = entries_of(queue)[3]
    queue.replace(3, QUEUE_ENTRY.pack(place, size, code))
    assert raw_entries(root, 0)[3] == (place, size, code)
    fill(store, 60, first=60)
    run_round(store)
    assert check_units(root, store) == 119
    store.close()


def test_the_setting_has_the_defaults_of_rocketmq() -> None:
    settings = StoreConfig()
    assert not settings.enable_consume_queue_ext
    assert settings.mapped_file_size_consume_queue_ext == 48 << 20


class UnitsStay(PosixFiles):
    """The units are on another file system than the queues."""

    def rename(self, source: str, target: str) -> None:
        if EXTENSIONS in source:
            raise OSError(errno.EXDEV, "Invalid cross-device link", source)
        super().rename(source, target)


def test_units_that_cannot_be_moved_do_not_keep_a_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, files=UnitsStay(), **ON)
    fill(store, 60)
    run_round(store)
    store.pool.discard("t", [1])
    assert "queue_units_not_removed topic=t" in caplog.text
    assert sorted(path.name for path in (tmp_path / "consumequeue" / "t").iterdir()) == ["0", "2"]
    store.log.fail("for the test")
    store.close()
