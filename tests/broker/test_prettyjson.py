"""fastjson's pretty text, as a whole and entry by entry."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.tables import EntryTexts, pretty
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


def text_of(texts: EntryTexts) -> bytes:
    return b'{\n\t"table":' + b"".join(texts.pieces()) + b"\n}"


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 200])
def test_a_table_is_the_same_in_pieces(count: int) -> None:
    texts = EntryTexts()
    values = {f"t{number}": TopicConfig(f"t{number}", number) for number in range(count)}
    for name, config in values.items():
        texts.put(name, config)
    assert len(list(texts.pieces())) == 1 + -(-count // 16)
    sorted_fields = {
        name: dict(sorted(parse_json(pretty(config)).items())) for name, config in values.items()
    }
    assert text_of(texts) == pretty({"table": sorted_fields})


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["put", "drop", "write", "alter"]))))
def test_whatever_changes_the_text_is_that_of_now(steps: list[tuple[int, str]]) -> None:
    texts = EntryTexts()
    values: dict[str, dict[str, int]] = {}
    begun: list[tuple[Iterator[bytes], bytes]] = []
    for number, (step, what) in enumerate(steps):
        key = f"k{step}"
        if what == "drop":
            values.pop(key, None)
            texts.drop(key)
        elif what == "write":
            assert parse_json(text_of(texts)) == {"table": values}
            # Another write begins now, and goes on after all that follows.
            begun.append((texts.pieces(), text_of(texts)))
        elif what == "put" or key not in values:
            values[key] = {"n": number}
            texts.put(key, values[key])
        else:
            values[key] = {**values[key], "n": -number}
            texts.put(key, values[key])
    for pieces, text in begun:
        assert b'{\n\t"table":' + b"".join(pieces) + b"\n}" == text
    assert parse_json(text_of(texts)) == {"table": values}


def test_only_what_changed_is_made_again() -> None:
    class Value(dict[str, int]):
        made = 0

        def items(self):  # type: ignore[no-untyped-def]
            self.made += 1
            return super().items()

    texts = EntryTexts()
    values = [Value(n=number) for number in range(100)]
    for number, value in enumerate(values):
        texts.put(str(number), value)
    text_of(texts)
    text_of(texts)
    assert sum(value.made for value in values) == 100
    values[3]["n"] = 1_000
    texts.put("3", values[3])
    assert b'"n":1000' in text_of(texts)
    assert sum(value.made for value in values) == 116
