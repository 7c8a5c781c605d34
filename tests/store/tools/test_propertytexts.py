"""Property texts out of a map of the log, many at once: what one record after the other gives."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pytest

from cometmq.filter.columns import CODEC
from cometmq.message.ids import pack_host
from cometmq.message.record import MAGIC_V1, MAGIC_V2, Record, pack
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY
from cometmq.store.tools.propertytexts import RecordMap

BASE = 1 << 20
V4, V6 = pack_host("10.0.0.1", 9), pack_host("::1", 9)
PROPERTIES = [b"a\x011\x02b\x012\x02", b"", "ü\x01ß".encode(), b"a\x01" + bytes(range(128, 256))]


@dataclass
class Log:
    """Bytes of a log file, and the entries of all of its records."""

    data: bytearray
    entries: list[bytes]

    def texts(self, entries: bytes | None = None) -> list[str] | None:
        joined = b"".join(self.entries) if entries is None else entries
        return RecordMap(memoryview(self.data), BASE).texts(joined)


def made(hosts: tuple[bytes, bytes] = (V4, V4), texts: list[bytes] = PROPERTIES) -> Log:
    log = Log(bytearray(b"other" * 10), [])
    for number, properties in enumerate(texts):
        place = BASE + len(log.data)
        record = Record(
            size_bytes=0, body_crc=0, queue_id=1, flag=0, queue_offset=number,
                physical_offset=place,
            sys_flag=0, born_ms=1, born_host=hosts[0], store_ms=2, store_host=hosts[1],
            reconsume_times=0, prepared_offset=0, body=bytes(number * 7), topic="t" * (number + 1),
            properties=properties,
        )  # fmt: skip
        log.data += pack(record)
        log.entries.append(QUEUE_ENTRY.pack(place, BASE + len(log.data) - place, 5))
        log.data += bytes(number)
    return log


def wanted(texts: list[bytes]) -> list[str]:
    return [each.decode(CODEC) for each in texts]


@pytest.mark.parametrize("hosts", [(V4, V4), (V4, V6), (V6, V4), (V6, V6)])
def test_any_hosts(hosts: tuple[bytes, bytes]) -> None:
    assert made(hosts).texts() == wanted(PROPERTIES)


def test_properties_without_the_byte_that_parts_them() -> None:
    log = made(texts=PROPERTIES[:3])
    assert log.texts() == wanted(PROPERTIES[:3])
    assert log.texts(log.entries[1]) == [""]


def test_long_topics() -> None:
    log = made()
    at = QUEUE_ENTRY.unpack(log.entries[2])[0] - BASE
    size = QUEUE_ENTRY.unpack(log.entries[2])[1]
    # As V2 has it: one byte more for the length of the topic.
    body_end = at + 88 + 14
    log.data[body_end:body_end] = b"\0"
    log.data[at : at + 8] = (size + 1).to_bytes(4, "big") + MAGIC_V2.to_bytes(4, "big")
    log.entries[2] = QUEUE_ENTRY.pack(at + BASE, size + 1, 5)
    assert log.texts(b"".join(log.entries[:3])) == wanted(PROPERTIES[:3])


@pytest.mark.parametrize(
    ("place", "size"),
    [
        (BASE + 51, 0),
        (BASE + 50, 1),
        (BASE + 50, -100),
        (BASE - 1, 0),
        (0, 0),
        (1 << 40, 0),
        (0, HOLE_SIZE - 200),
    ],
)
def test_entries_of_other_records_are_refused(place: int, size: int) -> None:
    log = made()
    first = QUEUE_ENTRY.unpack(log.entries[0])
    moved = QUEUE_ENTRY.pack(place, first[1] + size, 5)
    assert log.texts(log.entries[0]) is not None
    assert log.texts(moved) is None
    assert log.texts(log.entries[0] + moved) is None


@pytest.mark.parametrize("at", [0, 3, 4, 7, 28, 35, 84])
def test_a_record_that_is_not_the_one_of_its_entry_is_refused(at: int) -> None:
    log = made()
    log.data[50 + at] ^= 0x40
    assert log.texts() is None


def test_zeros_are_refused() -> None:
    log = made()
    log.data[:] = bytes(len(log.data))
    assert log.texts() is None


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("number", range(len(PROPERTIES)))
def test_lengths_that_lead_out_of_the_file_are_refused(magic: int, number: int) -> None:
    log = made()
    at = QUEUE_ENTRY.unpack(log.entries[number])[0] - BASE
    log.data[at + 4 : at + 8] = magic.to_bytes(4, "big")
    log.data[at + 84 : at + 88] = (1 << 20).to_bytes(4, "big")
    assert log.texts() is None


def test_records_side_by_side() -> None:
    log = made()
    mapped, entries = RecordMap(memoryview(log.data), BASE), b"".join(log.entries)
    places = [QUEUE_ENTRY.unpack(each)[:2] for each in log.entries]
    records = [bytes(log.data[place - BASE :][:size]) for place, size in places]
    found = mapped.gather(entries, [0, 2, 3], 1 << 20)
    assert found is not None
    assert found.records == records[0] + records[2] + records[3]
    assert found.ends == [*accumulate(map(len, (records[0], records[2], records[3])))]
    room = len(records[0]) + len(records[2])
    assert mapped.gather(entries, [0, 2, 3], room) == (records[0] + records[2], found.ends[:2])
    assert mapped.gather(entries, [0, 2, 3], room - 1) == (records[0], found.ends[:1])
    assert mapped.gather(entries, [0, 2, 3], 1) == (b"", [])
    log.data[places[2][0] - BASE] ^= 1
    assert mapped.gather(entries, [0, 2, 3], 1 << 20) is None
    assert mapped.gather(entries, [0, 1, 3], 1 << 20) is not None
