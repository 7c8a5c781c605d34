"""Reading the log record by record, from any device, and finding where it goes on."""

import errno
from pathlib import Path

import pytest

from cometmq.message.record import (
    BLANK,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    Record,
    decode_one,
    pack,
)
from cometmq.store.files import PosixFiles
from cometmq.store.log.scan import Resumption, Scan, first_record, log_store_ms, resumption
from cometmq.store.log.segments import LogFile, Segments
from cometmq.store.messagestore import MessageStore
from tests.store.stores import BORN, STORE_HOST, fill, log_of, opened, put

FILE_BYTES = 16_384


class BadSectors(PosixFiles):
    """A device that does not give some of its bytes, and counts those it gives."""

    def __init__(self, *bad: tuple[int, int]) -> None:
        self.bad = bad
        self.given = 0

    def read_into(self, handle: int, buffer: bytearray | memoryview, offset: int) -> int:
        stop = offset + len(buffer)
        if any(offset < bad_stop and stop > bad_start for bad_start, bad_stop in self.bad):
            raise OSError(errno.EIO, "Input/output error")
        self.given += len(buffer)
        return super().read_into(handle, buffer, offset)


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """Two full log files and a half."""
    made = opened(tmp_path)
    fill(made, 200)
    assert len(made.log.segments.files) == 3
    return made


def reread(store: MessageStore, files: PosixFiles) -> Segments:
    """The same log through another layer."""
    segments = Segments(files, store.log.segments.directory, FILE_BYTES)
    segments.load()
    return segments


def file_of(segments: Segments, record: Record) -> LogFile:
    file = segments.find(record.physical_offset)
    assert file is not None
    return file


def spoil(segments: Segments, record: Record, at: int = 4, data: bytes = b"\0") -> None:
    """Change bytes of a record."""
    file_of(segments, record).write(record.physical_offset + at, data)


@pytest.mark.parametrize("chunk_bytes", [16, 100, 1_000, 4096, 1 << 20])
def test_all_records_however_little_is_read_at_once(store: MessageStore, chunk_bytes: int) -> None:
    expected = log_of(store)
    scan = Scan(store.log.segments, 0, chunk_bytes=chunk_bytes)
    assert list(scan) == expected
    assert (scan.position, scan.records, scan.torn) == (store.written_offset, 200, False)
    middle = expected[57].physical_offset
    assert list(Scan(store.log.segments, middle, chunk_bytes=chunk_bytes)) == expected[57:]


def test_the_position_is_behind_the_record_that_is_looked_at(store: MessageStore) -> None:
    scan = Scan(store.log.segments, 0)
    for record in scan:
        assert scan.position == record.physical_offset + record.size_bytes


def test_an_end_may_be_given(store: MessageStore) -> None:
    records = log_of(store)
    scan = Scan(store.log.segments, 0, records[90].physical_offset)
    assert list(scan) == records[:90]
    assert scan.position == scan.end


def test_it_stops_at_the_first_bytes_that_are_no_record(store: MessageStore) -> None:
    third = log_of(store)[3]
    file = file_of(store.log.segments, third)
    good = bytes(file.view[third.physical_offset : third.physical_offset + third.size_bytes])
    cases: list[tuple[bytes, bool, str]] = [
        (bytes(8), True, "magic is 0x00000000"),
        (bytes(len(good)), False, "magic is 0x00000000"),
        (PREFIX.pack(5, 0xDAA320A7), True, "size is 5"),
        (PREFIX.pack(1 << 29, 0xDAA320A7), True, f"size is {1 << 29}"),
        (PREFIX.pack(third.size_bytes, MAGIC_V2), True, ""),
        (BLANK.pack(third.size_bytes, MAGIC_BLANK), True, "magic is 0xcbd43194"),
        (good[:28] + bytes(8) + good[36:], True, "its physical offset field is 0"),
        (good[:90] + b"!!" + good[92:], True, "body CRC differs"),
    ]
    for raw, torn, problem in cases:
        file.write(third.physical_offset, raw + good[len(raw) :])
        scan = Scan(store.log.segments, 0)
        assert len(list(scan)) == 3
        assert (scan.position, scan.records) == (third.physical_offset, 3)
        assert scan.torn is torn
        assert problem in scan.problem
        file.write(third.physical_offset, good)


def test_fault_may_be_found_with_a_record_that_is_whole(store: MessageStore) -> None:
    records = log_of(store)
    scan = Scan(store.log.segments, 0, check=lambda record: "no" * (record.body == records[9].body))
    assert list(scan) == records[:9]
    assert (scan.position, scan.problem) == (records[9].physical_offset, "no")
    scan.position = records[10].physical_offset
    assert list(scan) == records[10:]


def test_at_the_end_of_everything(store: MessageStore) -> None:
    scan = Scan(store.log.segments, store.log.segments.end)
    assert list(scan) == []
    assert not scan.torn


def test_where_not_even_a_blank_fits_the_log_goes_on_in_the_next_file(tmp_path: Path) -> None:
    segments = Segments(PosixFiles(), str(tmp_path), 4096)
    for base in (0, 4096):
        segments.add(segments.create_file(base))
    for offset, size in ((0, 4090), (4096, 200)):
        raw = pack(
            Record(0, 0, 0, 0, 0, offset, 0, 1, BORN, 1, STORE_HOST, 0, 0,
                   bytes(size - 92), "t", b"")
        )  # fmt: skip
        file = segments.find(offset)
        assert file is not None
        file.write(offset, raw)
    assert [record.physical_offset for record in Scan(segments, 0)] == [0, 4096]


@pytest.mark.parametrize("chunk_bytes", [200, 4096, 1 << 20])
def test_a_sector_that_cannot_be_read_stops_it_there(store: MessageStore, chunk_bytes: int) -> None:
    records = log_of(store)
    bad = next(r for r in records if r.physical_offset >= 8192)
    files = BadSectors((8192, 8192 + 512))
    scan = Scan(reread(store, files), 0, chunk_bytes=chunk_bytes)
    whole = [r for r in records if r.physical_offset + r.size_bytes <= 8192]
    assert list(scan) == whole
    assert scan.torn
    assert "cannot be read from the device" in scan.problem
    found = resumption(reread(store, files), scan.position)
    assert found is not None
    # A whole page is lost with its sector.
    assert found.offset == next(
        r.physical_offset for r in records if r.physical_offset >= 8192 + 4096
    )
    assert bad.physical_offset < found.offset


def test_what_is_read_is_what_is_asked_for(store: MessageStore) -> None:
    files = BadSectors()
    segments = reread(store, files)
    last = log_of(store)[-1]
    scan = Scan(segments, last.physical_offset, chunk_bytes=4096)
    assert len(list(scan)) == 1
    assert files.given <= 2 * 4096


def test_first_record(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (file,) = store.log.segments.files
    assert first_record(file) is None
    fill(store, 1)
    found = first_record(file)
    assert found is not None
    assert found == decode_one(file.view)
    file.write(0, (1 << 28).to_bytes(4, "big"))
    assert first_record(file) is None
    store.close()


def test_a_first_record_longer_than_a_page(tmp_path: Path) -> None:
    segments = Segments(PosixFiles(), str(tmp_path), FILE_BYTES)
    segments.add(segments.create_file(0))
    record = Record(0, 0, 0, 0, 0, 0, 0, 1, BORN, 7, STORE_HOST, 0, 0, bytes(9_000), "t", b"")
    segments.files[0].write(0, pack(record))
    found = first_record(segments.files[0])
    assert found is not None
    assert found.store_ms == 7
    bad = Segments(BadSectors((8_000, 8_100)), str(tmp_path), FILE_BYTES)
    bad.load()
    assert first_record(bad.files[0]) is None


def test_the_next_good_record_is_found(store: MessageStore) -> None:
    records = log_of(store)
    segments = store.log.segments
    for number in (0, 10, 150):
        spoil(segments, records[number])
        found = resumption(segments, records[number].physical_offset)
        following = records[number + 1]
        assert found == Resumption(following.physical_offset, following.store_ms)
    spoil(segments, records[11])
    spoil(segments, records[12], 90)
    found = resumption(segments, records[10].physical_offset)
    assert found == Resumption(records[13].physical_offset, records[13].store_ms)


def test_a_blank_is_where_a_file_goes_on(store: MessageStore) -> None:
    records = log_of(store)
    segments = store.log.segments
    last = max(r.physical_offset for r in records if r.physical_offset < FILE_BYTES)
    number = [r.physical_offset for r in records].index(last)
    spoil(segments, records[number])
    blank = last + records[number].size_bytes
    assert resumption(segments, last) == Resumption(blank, 0)
    following = records[number + 1]
    assert resumption(segments, last, of_records=True) == Resumption(
        following.physical_offset, following.store_ms
    )


def test_nothing_follows(store: MessageStore) -> None:
    last = log_of(store)[-1]
    spoil(store.log.segments, last)
    assert resumption(store.log.segments, last.physical_offset) is None
    assert resumption(store.log.segments, store.log.segments.end) is None


def test_a_record_of_another_log_in_a_body_is_no_record(tmp_path: Path) -> None:
    store = opened(tmp_path)
    inner = Record(0, 0, 0, 0, 0, 77_777, 0, 1, BORN, 1, STORE_HOST, 0, 0, b"inner", "t", b"")
    outer = Record(0, 0, 0, 0, 0, 0, 0, 1, BORN, 1, STORE_HOST, 0, 0, pack(inner), "t", b"")
    raw = pack(outer)
    file = store.log.segments.files[0]
    following = Record(
        0, 0, 0, 0, 1, len(raw), 0, 1, BORN, 5, STORE_HOST, 0, 0, b"next", "t", b""
    )  # fmt: skip
    file.write(0, b"\0\0\0\0" + raw[4:] + pack(following))
    assert resumption(store.log.segments, 0) == Resumption(len(raw), 5)
    store.close()


def test_store_times_are_read_from_the_log(store: MessageStore) -> None:
    records = log_of(store)
    assert log_store_ms(store.log.segments, records[9].physical_offset) == records[9].store_ms
    assert log_store_ms(store.log.segments, 1 << 40) == -1


def test_heads_in_a_body_that_claim_much_are_not_read(tmp_path: Path) -> None:
    """Else a client could make a start after a crash last for hours."""
    size = 600_000
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    fake = HEAD.pack(
        size, MAGIC_V1, 1, 0, 0, 0, 7, 0, 0, bytes(8), 5, bytes(8), 0, 0, size - HEAD.size - 9
    )
    put(store, body=fake * 400)
    store.commit()
    store.log.segments.files[0].write(0, bytes(8))
    files = BadSectors()
    segments = Segments(files, store.log.segments.directory, 1 << 20)
    segments.load()
    assert resumption(segments, 0) is None
    assert files.given < 3 << 20
    segments.close()
    store.close()
