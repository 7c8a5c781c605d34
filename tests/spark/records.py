"""Records for tests: by hypothesis, and in bulk."""

import zlib
from struct import Struct

from hypothesis import strategies as st

from cometmq.message import properties as props
from cometmq.message.record import COMPRESSED, MAGIC_V2, Record, pack

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**53), 2**53)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20)).map(
    lambda raw: raw[:-4] + b"\0\0" + raw[-2:]
)
WORDS = st.text(st.characters(exclude_categories=["Cs"], min_codepoint=4), min_size=1, max_size=9)
NAMES = st.one_of(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "CLUSTER"]), WORDS)
REGULAR = st.builds(
    lambda pairs, end: props.encode(pairs) + (b"\x02" if end and pairs else b""),
    st.dictionaries(NAMES, WORDS, max_size=5),
    st.booleans(),
)
ODD = st.lists(
    st.one_of(
        st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x03", b"KEYS\x01", b"TAGS\x01", b"\xff"]),
        st.binary(max_size=4),
    ),
    max_size=8,
).map(b"".join)
TOPICS = st.text("abcXYZ%|-_", min_size=1, max_size=20)


@st.composite
def records(draw: st.DrawFn, texts: st.SearchStrategy[bytes] = REGULAR) -> bytes:
    """One stored record as bytes; the old magic or the new, its body packed or not."""
    body = draw(st.binary(max_size=60))
    sys_flag = draw(st.sampled_from([0, 4, 8, COMPRESSED]))
    if sys_flag & COMPRESSED:
        body = zlib.compress(body)
    record = Record(
        0,
        0,
        draw(INT32),
        draw(INT32),
        draw(INT64),
        draw(INT64),
        sys_flag,
        draw(INT64),
        draw(HOSTS),
        draw(INT64),
        draw(HOSTS),
        draw(INT32),
        draw(INT64),
        body,
        draw(TOPICS),
        draw(texts),
    )
    packed = pack(record)
    return as_v2(packed, record) if draw(st.booleans()) else packed


def as_v2(packed: bytes, record: Record) -> bytes:
    """The same record with the magic that has two bytes for the topic's length."""
    split = len(packed) - 2 - len(record.properties) - len(record.topic.encode()) - 1
    size = Struct(">II").pack(len(packed) + 1, MAGIC_V2)
    return size + packed[8:split] + b"\0" + packed[split:]


def plain_record(
    offset: int, *, body: bytes = b"body", tag: str = "tag", key: str = "key", store_ms: int = 2
) -> bytes:
    """A record as most are."""
    texts = props.encode({"KEYS": key, "TAGS": tag, "UNIQ_KEY": f"{offset:032X}", "CLUSTER": "c"})
    host = b"\x7f\0\0\1\0\0\x2a\x9f"
    return pack(
        Record(
            0, 0, 3, 0, offset, offset * 200, 0, 1, host, store_ms, host, 0, 0, body, "T", texts
        )
    )  # fmt: skip
