"""Property texts that all have the same names; test_properties.py has those that differ."""

import pytest

from cometmq.message.properties import decode, encode
from cometmq.spark.decode.uniform import UniformColumns
from tests.spark.decode.test_properties import parsed


@pytest.mark.parametrize("end", [b"", b"\x02"])
def test_texts_with_the_same_names_are_cut_by_the_column(end: bytes) -> None:
    texts = [encode({"TAGS": "t" * at, "a_long_name": "é"}) + end for at in range(1, 30)]
    found = parsed(texts)
    assert isinstance(found, UniformColumns)
    assert [dict(row) for row in found.maps().to_pylist()] == [decode(text) for text in texts]
    assert found.named("TAGS").to_pylist() == ["t" * at for at in range(1, 30)]
    assert found.named("KEYS").to_pylist() == [None] * 29
