"""Batches built alike: the quick way gives the same bytes and rows as the general one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import MessageIllegal
from cometmq.message import batch
from cometmq.store.batching import UNIFORM_ROWS, prepare_general, rows_of
from cometmq.store.uniform import recognise
from tests.store.test_batching import QUEUE, check, entries, shared, texts

Entries = list[tuple[int, bytes, bytes]]


def alike(count: int, properties: bytes = b"UNIQ_KEY\x01%08d\x02TAGS\x01a") -> Entries:
    texts_ = [properties % number if b"%" in properties else properties for number in range(count)]
    return [(number, b"body%04d" % number, text) for number, text in enumerate(texts_)]


@pytest.mark.parametrize(
    "properties",
    [
        b"UNIQ_KEY\x01%08d\x02TAGS\x01a",
        b"TAGS\x01a\x02UNIQ_KEY\x01%08d\x02WAIT\x01true",
        b"X\x01%08d",
        b"X\x01v\x01%08d",
        b"TAGS\x01\xe6\xa0\x87\x02X\x01%08d",
    ],
)
@pytest.mark.parametrize("common", [b"", b"WAIT\x01true", b"\x02"])
def test_batches_built_alike_are_recognised(properties: bytes, common: bytes) -> None:
    many = alike(20, properties)
    found = recognise(batch.pack(many), QUEUE, shared(common))
    assert found is not None
    check(found, many, shared(common))


@pytest.mark.parametrize(
    "many",
    [
        alike(UNIFORM_ROWS - 1),
        [*alike(20)[:-1], (0, b"longer body", b"UNIQ_KEY\x0100000001\x02TAGS\x01a")],
        [*alike(20)[:-1], (0, b"body0000", b"UNIQ_KEY\x0100000001\x02TAGS\x01b")],
        [*alike(20)[:-1], (0, b"body0000", b"UNIQ_KEX\x0100000001\x02TAGS\x01a")],
        [*alike(20)[:-1], (0, b"body0000", b"UNIQ_KEY\x01000\x020001\x02TAGS\x01a")],
        [*alike(20)[:-1], (0, b"body000", b"XUNIQ_KEY\x0100000001\x02TAGS\x01a")],
        alike(20, b"KEYS\x01%08d"),
        alike(20, b"UNIQ_KEY\x01%08d\x02UNIQ_KEY\x01b"),
        alike(20, b"UNIQ_KEY\x01\xe6\xa0\x87"),
        alike(20, b"UNIQ_KEY\x01"),
        alike(20, b"lonely"),
        alike(20, b""),
    ],
)
def test_others_go_the_general_way(many: Entries) -> None:
    raw = batch.pack(many)
    assert recognise(raw, QUEUE, shared()) is None
    check(prepare_general(raw, QUEUE, shared()), many, shared())


@given(
    st.one_of(entries, st.tuples(entries, st.integers(8, 12)).map(lambda t: t[0][:1] * t[1])), texts
)
def test_both_ways_agree(many: Entries, common: bytes) -> None:
    raw = batch.pack(many)
    found = recognise(raw, QUEUE, shared(common))
    if found is None:
        return
    general = prepare_general(raw, QUEUE, shared(common))
    one, two = (b"".join(way.pack(QUEUE, shared(common), 99, 5)) for way in (found, general))
    assert one == two
    places = list(range(len(many)))
    assert list(rows_of(QUEUE, places, found, 5)) == list(rows_of(QUEUE, places, general, 5))


@given(st.binary(max_size=200))
def test_garbage_is_never_recognised_wrongly(junk: bytes) -> None:
    raw = (len(junk) + 4).to_bytes(4, "big") + junk
    found = recognise(raw * 9, QUEUE, shared())
    if found is not None:
        many = batch.split(raw * 9)
        check(found, [*many], shared())


def test_more_that_is_read_goes_the_general_way() -> None:
    raw = batch.pack(alike(20))
    assert recognise(raw, QUEUE, shared(b"UNIQ_KEY\x01batch")) is None
    assert recognise(raw, QUEUE, shared(bytes(32_767))) is None


def test_a_number_that_does_not_fit() -> None:
    common = shared()._replace(born_ms=1 << 70)
    found = recognise(batch.pack(alike(20)), QUEUE, common)
    assert found is not None
    with pytest.raises(MessageIllegal, match="does not fit"):
        found.pack(QUEUE, common, 0, 0)
