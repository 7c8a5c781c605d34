"""Batches: both ways of packing give the bytes that single messages would."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import MessageIllegal
from cometmq.filter.tags import tag_code
from cometmq.message import batch
from cometmq.message import properties as props
from cometmq.message.flags import TransactionType
from cometmq.message.record import iter_decode
from cometmq.store.batching import Shared, looked_up, prepare
from cometmq.store.consumequeue import ConsumeQueue
from cometmq.store.dispatch import Dispatched, row_of
from cometmq.store.files import PosixFiles
from cometmq.store.queuefiles import QueueFiles
from cometmq.store.runs import run_of
from tests.store.stores import BORN, STORE_HOST

Entries = list[tuple[int, bytes, bytes]]

QUEUE = ConsumeQueue(QueueFiles(PosixFiles(), "nowhere", 400), "topic", 3)


def shared(properties: bytes = b"", sys_flag: int = 0) -> Shared:
    return Shared(sys_flag, 11, BORN, STORE_HOST, 2, properties)


names = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT", b"X", b"XTAGS", b"XUNIQ_KEY"])
values = st.sampled_from([b"a", b"b c", b"", b"\xe6\xa0\x87", b"v\x01w", b"0123456789ABCDEF"])
pairs = st.lists(st.tuples(names, values), max_size=4).map(
    lambda found: b"\x02".join(name + b"\x01" + value for name, value in found)
)
texts = st.tuples(pairs, st.sampled_from([b"", b"\x02"])).map(b"".join)
entries = st.lists(
    st.tuples(st.integers(-5, 5), st.binary(max_size=20), texts), min_size=1, max_size=12
)


def check(raw: bytes, many: Entries, common: Shared) -> None:
    """The batch packs to records that say what was given, and its rows are what recovery reads."""
    found, end = prepare(raw, QUEUE, common)
    assert end == len(raw)
    places = list(accumulate(found.sizes[:-1], initial=1000))
    packed = b"".join(found.pack(QUEUE, common, 41, places, 77))
    records = list(iter_decode(packed, 1000))
    assert [record.size_bytes for record in records] == found.sizes
    rows = list(run_of(QUEUE, 41, places, found, 77).rows())
    assert rows == [row_of(record, QUEUE, ()) for record in records]
    for number, (record, (flag, body, own)) in enumerate(zip(records, many, strict=True)):
        assert (record.flag, record.body, record.queue_offset) == (flag, body, 41 + number)
        assert record.properties == props.joined(own, common.properties)
        assert (record.topic, record.queue_id, record.store_ms) == ("topic", 3, 77)
        assert (record.born_host, record.store_host, record.born_ms) == (BORN, STORE_HOST, 11)
        assert record.reconsume_times == 2


@given(entries, texts)
def test_any_batch(many: Entries, common: bytes) -> None:
    check(batch.pack(many), many, shared(common))


@given(texts)
def test_keys_and_tag_are_those_of_the_decoded_properties(raw: bytes) -> None:
    found = props.decode(raw)
    assert looked_up(raw, {}) == (props.index_keys(found), tag_code(found.get("TAGS")))


@pytest.mark.parametrize(
    ("raw", "common", "problem"),
    [
        (b"", shared(), "no message"),
        (b"\0\0\0\x05", shared(), "batch body"),
        (batch.pack([(0, b"", bytes(20_000))]), shared(bytes(13_000)), "are 33001 bytes long"),
        (batch.pack([(0, b"", b"")]), shared(b"", TransactionType.PREPARED), "transaction"),
    ],
)
def test_what_cannot_be_stored(raw: bytes, common: Shared, problem: str) -> None:
    with pytest.raises(MessageIllegal, match=problem):
        prepare(raw, QUEUE, common)


def test_a_number_that_does_not_fit() -> None:
    common = shared()._replace(born_ms=1 << 70)
    with pytest.raises(MessageIllegal, match="does not fit"):
        prepare(batch.pack([(0, b"", b"")]), QUEUE, common)


@given(entries, st.integers(1, 5))
def test_a_batch_may_be_taken_apart_in_pieces(many: Entries, limit: int) -> None:
    raw, position, first = batch.pack(many), 0, 41
    (whole, _), found = prepare(raw, QUEUE, shared()), b""
    rows: list[Dispatched] = []
    while position < len(raw):
        piece, position = prepare(raw, QUEUE, shared(), position, limit)
        places = list(accumulate(piece.sizes[:-1], initial=len(found)))
        found += b"".join(piece.pack(QUEUE, shared(), first, places, 5))
        rows += run_of(QUEUE, first, places, piece, 5).rows()
        first += len(piece.flags)
    places = list(accumulate(whole.sizes[:-1], initial=0))
    assert found == b"".join(whole.pack(QUEUE, shared(), 41, places, 5))
    assert rows == list(run_of(QUEUE, 41, places, whole, 5).rows())
