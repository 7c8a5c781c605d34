"""Tag codes and key hashes by the column are what dispatch and the index make of each record."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.message import properties as props
from cometmq.message.columns import read_columns
from cometmq.message.flags import TransactionType
from cometmq.message.record import Record, decode_one
from cometmq.message.walk import find_places
from cometmq.store.dispatch import code_and_keys
from cometmq.store.keyhash import index_hash, topic_prefix
from cometmq.store.layout import SCHEDULE_TOPIC
from cometmq.store.tools.properties import Derived, Topics, derive
from tests.message.strategies import property_maps, records
from tests.store.tools.logs import PLAIN, packed

DELAYS_MS = (1_000, 5_000)


def derived(some: list[Record], topics: Topics) -> Derived:
    data = packed(some)
    raw = np.frombuffer(data, np.uint8)
    columns, _ = read_columns(raw, find_places(data, 0).starts, 0)
    assert len(columns) == len(some)
    return derive(raw, columns, topics, DELAYS_MS)


def assert_as_dispatched(some: list[Record], topics: Topics | None = None) -> None:
    known = topics or Topics()
    found = derived(some, known)
    data = packed(some)
    at = 0
    expected: list[tuple[int, int]] = []
    for row in range(len(some)):
        record = decode_one(data, at, check_crc=False)
        at += record.size_bytes
        code, keys = code_and_keys(
            record.topic, record.sys_flag, record.store_ms, record.properties, DELAYS_MS
        )
        assert found.tag_codes[row] == code
        assert known.names[int(found.topics[row])] == record.topic
        prefix = topic_prefix(record.topic)
        expected += [(row, index_hash(prefix, key)) for key in keys]
    assert list(zip(found.key_rows.tolist(), found.key_hashes.tolist(), strict=True)) == expected


@given(st.lists(records, min_size=1, max_size=4))
def test_any_records(some: list[Record]) -> None:
    assert_as_dispatched(some)


own_texts = st.text("ab \x01zK", max_size=5)
pairs = st.lists(
    st.tuples(
        st.sampled_from([props.TAGS, props.KEYS, props.UNIQ_KEY, "o", "", "TAGS2"]), own_texts
    ),
    max_size=4,
)


@given(st.lists(pairs, min_size=1, max_size=12))
def test_few_letters_make_many_equal_shapes(texts: list[list[tuple[str, str]]]) -> None:
    some = [
        replace(PLAIN, properties="\x02".join(f"{n}\x01{v}" for n, v in text).encode())
        for text in texts
    ]
    assert_as_dispatched(some)


@given(st.lists(property_maps, min_size=1, max_size=12))
def test_any_texts(maps: list[dict[str, str]]) -> None:
    assert_as_dispatched([replace(PLAIN, properties=props.encode(each)) for each in maps])


@given(st.lists(st.binary(min_size=6, max_size=6), min_size=2, max_size=8))
def test_any_values_of_one_length(values: list[bytes]) -> None:
    heads = (b"TAGS\x01", b"KEYS\x01x y\x02UNIQ_KEY\x01", b"KEYS\x01")
    for head in heads:
        assert_as_dispatched([replace(PLAIN, properties=head + value) for value in values])


def test_what_most_stores_hold() -> None:
    some = [
        replace(
            PLAIN,
            topic=f"topic-{number % 3}",
            properties=props.encode(
                {
                    props.KEYS: f"order-{number:05d} {number % 10}",
                    props.UNIQ_KEY: f"{number * 7919:032X}",
                    props.TAGS: f"tag{number % 7}",
                    props.WAIT: "true",
                }
            ),
        )
        for number in range(500)
    ]
    topics = Topics()
    found = derived(some, topics)
    assert len(found.key_rows) == 1_500
    assert_as_dispatched(some, topics)
    # More topics later keep their numbers apart.
    assert_as_dispatched([replace(record, topic="b" * 40) for record in some] + some, topics)
    assert sorted(topics.names) == ["b" * 40, "topic-0", "topic-1", "topic-2"]


def test_values_beyond_ascii_and_long_ones() -> None:
    values = ["grün", "x" * 2_000, "plain", "\U0001f600"]
    some = [
        replace(PLAIN, properties=props.encode({name: value}))
        for value in values
        for name in (props.TAGS, props.KEYS, props.UNIQ_KEY)
    ]
    assert_as_dispatched(some * 3)


def test_more_topics_than_one_walk_takes() -> None:
    assert_as_dispatched([replace(PLAIN, topic=f"t{number}") for number in range(1_100)])


def test_no_records() -> None:
    assert_as_dispatched([])


def test_rolled_back_records_have_no_keys_and_delayed_ones_a_time() -> None:
    delayed = props.encode({props.DELAY: "2", props.TAGS: "a"})
    some = [
        replace(PLAIN, sys_flag=TransactionType.ROLLBACK),
        PLAIN,
        replace(PLAIN, topic=SCHEDULE_TOPIC, properties=delayed),
        replace(PLAIN, properties=b""),
    ]
    assert_as_dispatched(some * 3)
    found = derived(some, Topics())
    assert found.key_rows.tolist() == [1]
    assert found.tag_codes.tolist()[2] == PLAIN.store_ms + 5_000


def test_a_hash_without_an_absolute_value_counts_as_zero() -> None:
    topic, prefix = "t", topic_prefix("t")
    key = _with_hash(prefix, 0x8000_0000)
    some = [replace(PLAIN, topic=topic, properties=props.encode({props.KEYS: key}))] * 3
    assert derived(some, Topics()).key_hashes.tolist() == [0, 0, 0]
    assert_as_dispatched(some)


def _with_hash(prefix: int, wanted: int) -> str:
    """A key of seven ASCII letters whose hash with the prefix is ``wanted``."""
    least = [40 * sum(31**lower for lower in range(exponent)) for exponent in range(8)]
    rest = (wanted - prefix * pow(31, 7, 1 << 32)) % (1 << 32)
    while rest < least[7]:
        rest += 1 << 32
    letters: list[str] = []
    for exponent in range(6, -1, -1):
        digit = min(126, (rest - least[exponent]) // 31**exponent)
        letters.append(chr(digit))
        rest -= digit * 31**exponent
    return "".join(letters)
