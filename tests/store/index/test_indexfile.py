"""One index file: its bytes, its chains, and what a crash leaves of it."""

import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.files import Buffer, PosixFiles
from cometmq.store.index import HEADER_BYTES, IndexFile
from tests.store.full import FullFiles

SLOTS, ENTRIES = 7, 60


def made(path: Path) -> IndexFile:
    file = IndexFile(PosixFiles(), str(path), SLOTS, ENTRIES)
    file.start_empty()
    return file


def put(file: IndexFile, rows: list[tuple[int, int, int]], *, one_by_one: bool) -> None:
    if one_by_one:
        for key_hash, phys, store_ms in rows:
            file.put(*(array("q", [value]) for value in (key_hash, phys, store_ms)))
    else:
        file.put(*(array("q", column) for column in zip(*rows, strict=True)))


def test_bytes_as_java_writes_them(tmp_path: Path) -> None:
    """Two keys in one slot, the second 2.9 s later, then one in another slot."""
    file = made(tmp_path / "i")
    put(file, [(8, 100, 1_000), (1, 200, 3_900), (2, 300, 5_000)], one_by_one=False)
    file.write_slots()
    file.close()
    raw = (tmp_path / "i").read_bytes()
    assert len(raw) == 40 + 4 * SLOTS + 20 * ENTRIES
    assert struct.unpack(">qqqqii", raw[:40]) == (1_000, 5_000, 100, 300, 2, 4)
    assert struct.unpack(">7i", raw[40:68]) == (0, 2, 3, 0, 0, 0, 0)
    entries = [struct.unpack(">iqii", raw[at : at + 20]) for at in range(68, 68 + 80, 20)]
    assert entries == [(0, 0, 0, 0), (8, 100, 0, 0), (1, 200, 2, 1), (2, 300, 4, 0)]


batches = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.booleans()), max_size=5
)


@given(batches)
def test_every_way_of_putting_gives_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, many: list[tuple[list[int], bool]]
) -> None:
    root = tmp_path_factory.mktemp("index")
    mixed, single = made(root / "mixed"), made(root / "single")
    phys = 0
    places: dict[int, list[int]] = {}
    for hashes, one_by_one in many:
        rows = [(value, phys + number, 5_000 + phys * 700) for number, value in enumerate(hashes)]
        for value, place, _ in rows:
            places.setdefault(value, []).insert(0, place)
        phys += len(rows)
        if phys < ENTRIES:
            put(mixed, rows, one_by_one=one_by_one)
            put(single, rows, one_by_one=True)
            for value, expected in places.items():
                assert mixed.query(value, 100, 0, 1 << 60) == expected
    for file in (mixed, single):
        file.write_slots()
        file.close()
    assert (root / "mixed").read_bytes() == (root / "single").read_bytes()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=50), st.integers(0, 60), st.booleans())
def test_recovery_keeps_what_is_below(
    tmp_path_factory: pytest.TempPathFactory, hashes: list[int], below: int, torn: bool
) -> None:
    root = tmp_path_factory.mktemp("index")
    file = made(root / "i")
    rows = [(value, number + 1, 1_000) for number, value in enumerate(hashes)]
    put(file, rows, one_by_one=False)
    file.close()
    if torn and below < len(hashes):
        raw = bytearray((root / "i").read_bytes())
        at = 40 + 4 * SLOTS + 20 * (below + 1)
        raw[at:] = bytes(len(raw) - at)
        (root / "i").write_bytes(raw)
    again = IndexFile(PosixFiles(), str(root / "i"), SLOTS, ENTRIES)
    again.recover(below + 1)
    kept = hashes[:below]
    assert again.count == len(kept) + 1
    for value in set(hashes):
        expected = [number for number, found in enumerate(kept, 1) if found == value]
        assert again.query(value, 100, 0, 1 << 60) == expected[::-1]
    put(again, [(3, 70, 9_000)], one_by_one=False)
    assert again.query(3, 1, 0, 1 << 60) == [70]
    again.close()


def test_slots_come_back_after_a_clean_stop_and_from_the_file(tmp_path: Path) -> None:
    file = made(tmp_path / "i")
    put(file, [(8, 100, 1_000), (1, 200, 3_900)], one_by_one=False)
    file.write_slots()
    file.sync()
    file.close()
    again = IndexFile(PosixFiles(), str(tmp_path / "i"), SLOTS, ENTRIES)
    assert again.query(8, 9, 0, 1 << 60) == [100]
    again.load_slots()
    assert again.query(1, 9, 0, 1 << 60) == [200]
    again.release_slots()
    assert again.query(1, 9, 0, 1 << 60) == [200]
    again.close()


def test_times_bound_a_query(tmp_path: Path) -> None:
    file = made(tmp_path / "i")
    put(file, [(1, number, 10_000 + number * 1_000) for number in range(9)], one_by_one=False)
    assert file.query(1, 100, 12_000, 15_000) == [5, 4, 3, 2]
    assert file.query(1, 2, 0, 1 << 60) == [8, 7]
    assert file.overlaps(0, 10_000)
    assert file.overlaps(18_000, 1 << 60)
    assert not file.overlaps(18_001, 1 << 60)
    assert not file.overlaps(0, 9_999)
    file.close()


@pytest.mark.parametrize(("position", "value"), [(16, 2), (16, 99), (16, -1), (12, -5)], ids=str)
def test_broken_chains_end(tmp_path: Path, position: int, value: int) -> None:
    """``previous`` or the seconds of the newest entry are nonsense: no loop, no other key."""
    file = made(tmp_path / "i")
    put(file, [(1, 100, 1_000), (1, 200, 2_000)], one_by_one=False)
    file.write_slots()
    file.close()
    raw = bytearray((tmp_path / "i").read_bytes())
    at = 40 + 4 * SLOTS + 20 * 2 + position
    raw[at : at + 4] = struct.pack(">i", value)
    (tmp_path / "i").write_bytes(raw)
    again = IndexFile(PosixFiles(), str(tmp_path / "i"), SLOTS, ENTRIES)
    assert again.query(1, 100, 0, 1 << 60) == ([] if position == 12 else [200])
    again.close()


def test_a_torn_entry_does_not_mislead_the_search(tmp_path: Path) -> None:
    file = made(tmp_path / "i")
    rows = [(1, 10, 0), (1, 20, 0), (1, 90, 0), (1, 3, 0), (1, 99, 0)]
    put(file, rows, one_by_one=True)
    file.close()
    again = IndexFile(PosixFiles(), str(tmp_path / "i"), SLOTS, ENTRIES)
    again.recover(50)
    assert again.count == 3
    assert again.query(1, 9, 0, 1 << 60) == [20, 10]
    again.close()


def test_what_is_given_up_does_not_come_back(tmp_path: Path) -> None:
    """Behind new entries, old ones would look as if the records that stand there now had them."""
    path = tmp_path / "i"
    file = made(path)
    put(file, [(number, number * 100, 1_000) for number in range(1, 41)], one_by_one=False)
    file.recover(500)
    assert file.count == 5
    put(file, [(9, 510, 1_000)], one_by_one=True)
    header = path.read_bytes()[:40]
    file.close()
    # The header of before, as a power cut may leave it.
    raw = bytearray(path.read_bytes())
    raw[36:40] = (41).to_bytes(4, "big")
    path.write_bytes(raw)
    again = IndexFile(PosixFiles(), str(path), SLOTS, ENTRIES)
    again.recover(5_000)
    assert (again.count, again.end_phys) == (6, 510)
    assert int.from_bytes(header[36:40], "big") == 6
    again.close()


def test_without_room_what_is_given_up_goes_before_the_next_entries(tmp_path: Path) -> None:
    """A device that is full may have no room to write even where something stands already."""
    path = tmp_path / "i"
    file = made(path)
    put(file, [(number, number * 100, 1_000) for number in range(1, 41)], one_by_one=False)
    file.close()
    files = FullFiles()
    again = IndexFile(files, str(path), SLOTS, ENTRIES)
    again.recover(500)
    assert again.query(4, 9, 0, 1 << 60) == [400]
    assert again.query(5, 9, 0, 1 << 60) == []
    with pytest.raises(OSError, match="No space"):
        put(again, [(9, 510, 1_000)], one_by_one=True)
    with pytest.raises(OSError, match="No space"):
        again.write_slots()
    files.full = False
    put(again, [(9, 510, 1_000)], one_by_one=True)
    again.close()
    assert path.read_bytes().rstrip(b"\0")[-20:].startswith(struct.pack(">iq", 9, 510)[:11])
    assert not any(path.read_bytes()[HEADER_BYTES + 4 * SLOTS + 20 * 6 :])


def test_recovery_writes_nothing_where_nothing_stands(tmp_path: Path) -> None:
    """Files are sparse: zeros written into a hole would take room that a full disk lacks."""
    ends = []

    class Watched(PosixFiles):
        def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
            ends.append(offset + len(data))
            super().pwrite(handle, data, offset)

    path = str(tmp_path / "i")
    file = IndexFile(PosixFiles(), path, SLOTS, 20_000)
    file.start_empty()
    rows = [(number, number * 100, 1_000) for number in range(1, 4_001)]
    put(file, rows, one_by_one=False)
    file.close()
    again = IndexFile(Watched(), path, SLOTS, 20_000)
    again.recover(500)
    again.close()
    data_end = HEADER_BYTES + 4 * SLOTS + 20 * (len(rows) + 1)
    assert data_end - 20 < max(ends) <= data_end
    # The last piece goes first: what is left when that ends half way is found again.
    assert ends == sorted(ends, reverse=True)
    assert len(ends) > 1
