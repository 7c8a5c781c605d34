"""Filtering stored records."""

from cometmq.filter.stored import Matches, matching
from cometmq.message.record import MAGIC_V1, MAGIC_V2, Record, pack, properties_of

HOSTS = {4: b"\x7f\0\0\x01\0\0\x27\x10", 16: b"\0" * 15 + b"\x01\0\0\x27\x10"}


def record(text: bytes, *, born: int = 4, stored: int = 4, body: bytes = b"body") -> bytes:
    return pack(
        Record(0, 0, 1, 0, 7, 100, 0, 1, HOSTS[born], 2, HOSTS[stored], 0, 0, body, "topic", text)
    )


def v2(raw: bytes) -> bytes:
    """The record with a topic length of two bytes."""
    at = raw.index(b"\x05topic")
    longer = (len(raw) + 1).to_bytes(4, "big") + raw[4:at] + b"\0" + raw[at:]
    return longer.replace(MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"), 1)


def test_properties_are_found_behind_any_hosts() -> None:
    for born in HOSTS:
        for stored in HOSTS:
            raw = record(b"a\x01b", born=born, stored=stored)
            assert bytes(properties_of(memoryview(b"xx" + raw), 2, len(raw))) == b"a\x01b"


def test_properties_of_a_record_with_a_long_topic_length() -> None:
    raw = v2(record(b"a\x01b"))
    assert bytes(properties_of(memoryview(raw), 0, len(raw))) == b"a\x01b"


def test_what_matches_is_joined_and_counted() -> None:
    yes, no = record(b"keep\x011"), record(b"", body=b"")
    chunks = [memoryview(no + yes + yes + no), memoryview(yes + no + yes), memoryview(no)]
    found = matching(chunks, lambda raws: [raw == b"keep\x011" for raw in raws])
    assert [bytes(chunk) for chunk in found.chunks] == [yes + yes, yes, yes]
    assert (found.count, found.size_bytes) == (4, 4 * len(yes))


def test_nothing_matches() -> None:
    assert matching([memoryview(record(b""))], lambda raws: [False] * len(raws)) == Matches(
        [], 0, 0
    )
