"""Property text, as Java writes and reads it."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.message import properties as props
from tests.message.strategies import property_maps


@given(property_maps)
def test_round_trip(properties: dict[str, str]) -> None:
    assert props.decode(props.encode(properties)) == properties
    assert props.decode_text(props.encode_text(properties)) == properties


@given(property_maps)
def test_find_agrees_with_decode(properties: dict[str, str]) -> None:
    raw = props.encode(properties)
    for name in [*properties, "UNIQ_KEY", "KEYS"]:
        found = props.find(raw, name.encode())
        assert (found.decode() if found is not None else None) == properties.get(name)


@given(st.binary(max_size=60), st.sampled_from([b"A", b"AB", b"K"]))
def test_find_agrees_with_decode_on_any_bytes(raw: bytes, name: bytes) -> None:
    found = props.find(raw, name)
    expected = props.decode(raw).get(name.decode())
    assert (str(found, "utf-8", "replace") if found is not None else None) == expected


@given(st.lists(st.sampled_from([b"A\x01", b"A", b"\x02", b"\x01", b"v", b"BA\x01"]), max_size=12))
def test_find_agrees_with_decode_on_odd_separators(parts: list[bytes]) -> None:
    raw = b"".join(parts)
    found = props.find(raw, b"A")
    expected = props.decode(raw).get("A")
    assert (found.decode() if found is not None else None) == expected


def test_trailing_separator_is_read() -> None:
    assert props.decode(b"TAGS\x01a\x02WAIT\x01true\x02") == {"TAGS": "a", "WAIT": "true"}


def test_pairs_without_name_or_value_are_dropped() -> None:
    assert props.decode_text("\x01v\x02n\x01\x02lonely\x02\x02a\x01b") == {"a": "b"}


def test_value_may_hold_the_inner_separator_and_the_last_name_wins() -> None:
    assert props.decode_text("a\x01b\x01c\x02a\x01d") == {"a": "d"}
    assert props.find(b"a\x01b\x01c\x02a\x01d", b"a") == b"d"
    assert props.decode_text("a\x01b\x01c") == {"a": "b\x01c"}


def test_broken_utf8_is_replaced_not_refused() -> None:
    assert props.decode(b"a\x01\xff") == {"a": "�"}


def test_lone_surrogate_is_written_as_java_writes_it() -> None:
    assert props.encode({"a": "\ud800"}) == b"a\x01?"


def test_without_takes_out_every_pair_of_a_name() -> None:
    text = "WAIT\x01true\x02A\x01WAIT\x02B\x01b\x02WAIT\x01x"
    assert props.without(text, "WAIT") == "A\x01WAIT\x02B\x01b"
    assert props.without(text, "WAIT", "B") == "A\x01WAIT"
    assert props.without(text, "NONE") == text


def test_joined_puts_one_separator() -> None:
    assert props.joined(b"a\x01b", b"c\x01d") == b"a\x01b\x02c\x01d"
    assert props.joined(b"a\x01b\x02", b"c\x01d") == b"a\x01b\x02c\x01d"
    assert props.joined(b"", b"c\x01d") == b"c\x01d"
    assert props.joined(b"a\x01b", b"") == b"a\x01b"


def test_index_keys_begin_with_the_unique_one() -> None:
    assert props.index_keys({"KEYS": " a  b ", "UNIQ_KEY": "u"}) == ("u", "a", "b")
    assert props.index_keys({"KEYS": "a"}) == ("a",)
    assert props.index_keys({}) == ()


def test_reserved_names_hold_names_only() -> None:
    assert {"KEYS", "TAGS", "UNIQ_KEY", "__transactionId__"} <= props.RESERVED
    assert not props.RESERVED & {"\x01", "\x02"}
