"""fastjson's pretty text, as a whole and entry by entry."""

import pytest

from cometmq.broker.prettyjson import EntryTexts, pretty
from cometmq.protocol.bodies import DataVersion, TopicConfig
from cometmq.protocol.fastjson import parse_json

# As a Java 4.9.7 broker wrote it.
JAVA_OFFSETS = b"""{
\t"offsetTable":{
\t\t"%RETRY%g@g":{0:0
\t\t},
\t\t"TopicTest@g":{0:250,1:250
\t\t}
\t}
}"""


def test_integer_keys_stand_as_java_writes_them() -> None:
    table = {"offsetTable": {"%RETRY%g@g": {0: 0}, "TopicTest@g": {0: 250, 1: 250}}}
    assert pretty(table) == JAVA_OFFSETS
    assert parse_json(JAVA_OFFSETS) == {
        "offsetTable": {"%RETRY%g@g": {"0": 0}, "TopicTest@g": {"0": 250, "1": 250}}
    }


def test_everything_else_is_pretty_with_tabs() -> None:
    value = {"v": DataVersion(2, 3), "empty": {}, "none": None, "list": ["a", 1], "no": []}
    assert pretty(value) == (
        b'{\n\t"v":{\n\t\t"counter":2,\n\t\t"timestamp":3\n\t},\n\t"empty":{},'
        b'\n\t"list":[\n\t\t"a",\n\t\t1\n\t],\n\t"no":[]\n}'
    )


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_a_table_is_the_same_in_pieces(count: int) -> None:
    values = {f"t{number}": TopicConfig(f"t{number}", number) for number in range(count)}
    pieces = list(EntryTexts().pieces(values.items()))
    assert len(pieces) == 1 + -(-count // 64)
    text = b'{\n\t"topics":' + b"".join(pieces) + b"\n}"
    sorted_fields = {
        name: dict(sorted(parse_json(pretty(config)).items())) for name, config in values.items()
    }
    assert text == pretty({"topics": sorted_fields})


def test_an_entry_is_made_again_only_when_its_value_is_another() -> None:
    class Value(dict[str, int]):
        looked_at = 0

        def items(self):  # type: ignore[no-untyped-def]
            self.looked_at += 1
            return super().items()

    texts = EntryTexts()
    first, second = Value(a=1), Value(a=1)
    for _ in range(3):
        list(texts.pieces([("x", first)]))
    assert first.looked_at == 1
    list(texts.pieces([("x", second)]))
    assert second.looked_at == 1
    second["a"] = 2
    assert b'"a":1' in b"".join(texts.pieces([("x", second)]))
    texts.drop("x")
    assert b'"a":2' in b"".join(texts.pieces([("x", second)]))
