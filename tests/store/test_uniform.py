"""Batches built alike: the quick way gives the same bytes and rows as the general one."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import MessageIllegal
from cometmq.message import batch
from cometmq.store import batching
from cometmq.store.batching import prepare
from cometmq.store.dispatch import Dispatched
from cometmq.store.runs import run_of
from cometmq.store.uniform import UNIFORM_ROWS, recognise
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
    raw = batch.pack(many)
    assert recognise(raw) is not None
    check(raw, many, shared(common))


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
    assert recognise(raw) is None
    check(raw, many, shared())


@given(
    st.one_of(entries, st.tuples(entries, st.integers(8, 12)).map(lambda t: t[0][:1] * t[1])), texts
)
def test_both_ways_agree(many: Entries, common: bytes) -> None:
    raw = batch.pack(many)
    if recognise(raw) is None:
        return
    made: list[tuple[bytes, list[Dispatched]]] = []
    for way in (recognise, lambda _: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batching, "recognise", way)
            found, _ = prepare(raw, QUEUE, shared(common))
        places = list(accumulate(found.sizes[:-1], initial=99))
        packed = b"".join(found.pack(QUEUE, shared(common), 7, places, 5))
        made.append((packed, list(run_of(QUEUE, 7, places, found, 5).rows())))
    assert made[0] == made[1]


@given(st.binary(max_size=200))
def test_garbage_is_never_recognised_wrongly(junk: bytes) -> None:
    raw = (len(junk) + 4).to_bytes(4, "big") + junk
    if recognise(raw * 9) is not None:
        check(raw * 9, [*batch.split(raw * 9)], shared())


def test_what_the_batch_says_of_keys_and_tags_counts_for_all() -> None:
    many = alike(20)
    check(batch.pack(many), many, shared(b"UNIQ_KEY\x01b"))


def test_properties_may_be_too_long_together() -> None:
    with pytest.raises(MessageIllegal, match="the limit is 32767"):
        prepare(batch.pack(alike(20)), QUEUE, shared(bytes(32_767)))
