"""Property texts of many records at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.properties import decode, encode
from cometmq.spark.decode.properties import (
    FlatColumns,
    GroupedColumns,
    PropertyColumns,
    parse,
)
from tests.spark.records import ODD, REGULAR


def parsed(texts: list[bytes]) -> PropertyColumns:
    data = b"".join(len(text).to_bytes(2, "big") + text for text in texts)
    ends = np.cumsum([2 + len(text) for text in texts], dtype=np.int64)
    starts = ends - np.array([len(text) for text in texts], np.int64)
    return parse(data, starts, ends)


@given(st.lists(st.one_of(REGULAR, ODD), max_size=8))
def test_maps_are_what_the_plain_parser_gives(texts: list[bytes]) -> None:
    maps = parsed(texts).maps()
    maps.validate(full=True)
    assert [dict(row) for row in maps.to_pylist()] == [decode(text) for text in texts]


@given(
    st.lists(st.one_of(REGULAR, ODD), min_size=1, max_size=8),
    st.sampled_from(["KEYS", "TAGS", "x"]),
)
def test_one_name(texts: list[bytes], name: str) -> None:
    assert parsed(texts).named(name).to_pylist() == [decode(text).get(name) for text in texts]


def test_more_names_than_bits() -> None:
    texts = [encode({f"n{at}": "v" for at in range(start, start + 40)}) for start in (0, 30)]
    found = parsed(texts)
    assert isinstance(found, FlatColumns)
    assert found.unambiguous
    assert [len(row) for row in found.maps().to_pylist()] == [40, 40]
    twice = [*texts, b"n1\x01a\x02n2\x01b\x02n1\x01c"]
    assert dict(parsed(twice).maps().to_pylist()[2]) == {"n1": "c", "n2": "b"}


SAME = encode({"UNIQ_KEY": "0123", "TAGS": "a"})


@pytest.mark.parametrize(
    "other",
    [
        encode({"UNIQ_KEY": "0123", "TAGZ": "a"}),
        encode({"UNIQ_KEX": "0123", "TAGS": "a"}),
        b"UNIQ_KEY\x010\x02TAGS\x01",
        b"\x01v\x02TAGS\x01a",
        b"UNIQ_KEY\x010\x02UNIQ_KEY\x011",
        b"UNIQ_KEY\x02v\x01TAGS\x02a",
        b"UNIQ_KEY\x010\x02TAGS\x03a",
        encode({"TAGS": "a"}) + b"\x02b",
        b"",
    ],
)
def test_one_text_that_is_otherwise(other: bytes) -> None:
    for texts in ([SAME] * 3 + [other] + [SAME] * 3, [other] * 3):
        assert [dict(row) for row in parsed(texts).maps().to_pylist()] == list(map(decode, texts))


def test_a_mixed_block_is_parted_by_how_many_names_there_are() -> None:
    texts = [
        encode({f"n{name}": f"v{at}" for name in range(1 + at * 7 % 4)}) if at % 9 else b""
        for at in range(500)
    ]
    found = parsed(texts)
    assert isinstance(found, GroupedColumns)
    assert [dict(row) for row in found.maps().to_pylist()] == [decode(text) for text in texts]
    assert found.named("n2").to_pylist() == [decode(text).get("n2") for text in texts]
