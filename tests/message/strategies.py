"""Hypothesis strategies for records and what they are made of."""

from hypothesis import strategies as st

from cometmq.message.record import Record

texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
property_maps = st.dictionaries(texts, texts, max_size=6)
topics = st.text("abcXYZ019_-%", min_size=1, max_size=127)
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
int32 = st.integers(-(2**31), 2**31 - 1)
offsets = st.integers(0, 2**62)

records = st.builds(
    Record,
    size_bytes=st.just(0),
    body_crc=st.just(0),
    queue_id=st.integers(0, 2**31 - 1),
    flag=int32,
    queue_offset=offsets,
    physical_offset=offsets,
    sys_flag=st.integers(0, 0xFFF),
    born_ms=offsets,
    born_host=hosts,
    store_ms=offsets,
    store_host=hosts,
    reconsume_times=int32,
    prepared_offset=offsets,
    body=st.binary(max_size=300),
    topic=topics,
    properties=st.binary(max_size=300),
)
