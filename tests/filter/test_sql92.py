"""What SQL92 expressions say of messages, also of stored records, and how much a read looks at."""

from __future__ import annotations

import random
from time import process_time

import pytest

from cometmq.filter.sql92 import (
    MAX_BYTES,
    MAX_COMPARISONS,
    MAX_SEARCHED_BYTES,
    BadFilter,
    Budget,
    Matches,
    SqlFilter,
    matching,
)
from cometmq.message.properties import encode
from cometmq.message.record import MAGIC_V1, MAGIC_V2, Record, pack, properties_of
from cometmq.store.read.reader import MAX_SCANNED_ENTRIES
from tests.pace import slowness

#: Processor time of any filter beside one message, with much to spare.
LIMIT_S = 0.5
ORDER = encode({"a": "5", "b": "abc", "real": "2.5", "yes": "True", "big": "3000000000", "n": "ä"})


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("a = 5", True),
        ("a <> 5", False),
        ("a = 5.0", True),
        ("a > 4 AND a < 6", True),
        ("a >= 5 AND a <= 5", True),
        ("5 < a", False),
        ("4 < a", True),
        ("5 = a", True),
        ("a = '5'", True),
        ("a BETWEEN 5 AND 9", True),
        ("a NOT BETWEEN 5 AND 9", False),
        ("a > -1", True),
        ("real > 2 ", False),  # 2.5 is no Integer, and beside one it is an error
        ("real > 2.4", True),
        ("real < a", True),  # two texts: both as Double
        ("b = 'abc'", True),
        ("b <> 'abc'", False),
        ("n = 'ä'", True),
        ("b IN ('x', 'abc')", True),
        ("b NOT IN ('x')", True),
        ("b CONTAINS 'bc' AND b STARTSWITH 'a' AND b ENDSWITH 'c'", True),
        ("b NOT CONTAINS 'bc'", False),
        ("yes = TRUE", True),
        ("yes = FALSE", False),
        ("TRUE = yes", False),  # an error in RocketMQ
        ("yes", False),  # text is not a truth
        ("NOT yes", True),
        ("TRUE", True),
        ("NULL", False),
        ("a = b", False),
        ("a = a", True),
        ("a > b", False),
        ("b > 5 OR a = 5", False),  # an error ends the whole evaluation
        ("a = 5 OR b > 5", True),  # which is not reached here
        ("big > 5", False),  # no Integer
        ("big > 5000000000", False),
        ("big < 5000000000", True),
        ("NOT a = 5", False),
        ("(a = 5) = TRUE", True),
        ("(a = 5) = 5", False),
        ("-a = 5", False),
        ("-real < a", False),
        ("-(-a) IS NULL", True),
        # Unknown:
        ("none = 5", False),
        ("none <> 5", False),
        ("NOT (none = 5)", False),
        ("none IS NULL", True),
        ("none IS NOT NULL", False),
        ("a IS NOT NULL", True),
        ("none = 5 OR a = 5", True),
        ("none = 5 AND a = 5", False),
        ("NOT (none = 5 AND a = 6)", True),
        ("none IN ('x')", False),
        ("none NOT IN ('x')", False),
        ("none CONTAINS 'x'", False),
        ("NOT none", False),
        ("none = nothing", True),
        ("none > nothing", False),
        ("'x' <> none", True),
        ("(a > 1) IS NULL", False),
    ],
)
def test_verdicts(expression: str, matches: bool) -> None:
    assert SqlFilter(expression).accepts(ORDER) is matches


@pytest.mark.parametrize(
    ("text", "is_five"),
    [
        ("5", True), ("+5", True), ("05", True), ("5.", True), ("5e0", True), (" 5 ", True),
        ("5f", True), (".5e1", True), ("5_0", False), ("", False), ("0x5", False), ("five", False),
    ],
)  # fmt: skip
def test_text_beside_a_double_is_read_as_java_does(text: str, is_five: bool) -> None:
    assert SqlFilter("a = 5.0").accepts(encode({"a": text})) is is_five


@pytest.mark.parametrize(
    ("text", "is_five"), [("5", True), ("+5", True), ("05", True), (" 5", False), ("5.0", False)]
)
def test_text_beside_a_whole_number_is_read_as_java_does(text: str, is_five: bool) -> None:
    assert SqlFilter("a = 5").accepts(encode({"a": text})) is is_five


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0" * 5_000 + "5", 5), ("-" + "0" * 5_000 + "5", -5), ("5" * 5_000, None),
        ("+" + "0" * 30_000 + "5", 5), ("5" * 20_000 + "x", None), ("0" * 30_000, 0),
        ("9223372036854775808", None), ("0" * 60 + "5", 5), ("-" * 5_000 + "5", None),
    ],
)  # fmt: skip
def test_a_whole_number_may_have_any_number_of_digits(text: str, number: int | None) -> None:
    """Zeros before it mean nothing, as in Java; what no Long can be is an error, and no match."""
    properties = encode({"a": text, "b": "1"})
    assert SqlFilter("a = 5").accepts(properties) is (number == 5)
    assert SqlFilter("a < 0").accepts(properties) is (number == -5)
    assert SqlFilter("a = 7 OR b = 1").accepts(properties) is (number is not None)
    assert SqlFilter("a < 5000000000").accepts(properties) is (number is not None)
    assert SqlFilter("b = 1 OR a = 7").accepts(properties)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "1" * 32_000 + "x", "1" * 32_000, "." * 32_000, "1." + "1" * 32_000 + "x", "-" * 32_000,
        " " * 32_000, "1" + " " * 32_000 + "x", "1e" + "9" * 32_000 + "x", "0" * 32_000 + "x",
        "9007199254740993." + "0" * 31_000 + "1", "1" + "0" * 31_000 + "e-31000", "a" * 32_000,
    ],
)  # fmt: skip
def test_any_property_is_compared_at_once(text: str, few: bool) -> None:
    properties = encode({"a": text})
    more = "" if few else "".join(f" OR a = {number}.5" for number in range(500))
    for expression in ("a > 1.5", "a = 5", "a > a", "a = TRUE", "-a = 1", "a CONTAINS 'x'"):
        sql = SqlFilter(expression + more)
        begun = process_time()
        sql.accepts(properties)
        assert process_time() - begun < LIMIT_S * slowness()


def test_many_searches_in_a_long_property() -> None:
    """Each of them would cost the product of both lengths."""
    searches = [f"a CONTAINS '{'a' * 50}{number}{'a' * 48}'" for number in range(500)]
    sql = SqlFilter(" OR ".join(searches))
    begun = process_time()
    assert not sql.accepts(encode({"a": "a" * 29_000}))
    assert process_time() - begun < LIMIT_S * slowness()
    assert sql.accepts(encode({"a": "a" * 9_000 + "499" + "a" * 9_000}))


def test_a_filter_of_many_properties_is_ready_at_once() -> None:
    """The first look makes what finds each property."""
    text = " OR ".join(f"name{number} = {number}" for number in range(500))
    begun = process_time()
    sql = SqlFilter(text)
    found = sql.matches([encode({f"name{number}": str(number)}) for number in range(490, 510)])
    assert process_time() - begun < LIMIT_S * slowness()
    assert found == [True] * 10 + [False] * 10


VALUES = ["5", "x", "", "7", "xx", "2.5", "x\x01y"]
PARTS = ["a = 5", "b = 'x'", "a > 2", "b CONTAINS 'x'", "c IS NULL", "a = b", "a < 2.5", "NOT c"]


def test_filters_of_many_parts_say_the_same_as_those_of_few() -> None:
    chance = random.Random(7)
    texts = [
        "\x02".join(
            f"{name}\x01{chance.choice(VALUES)}"
            for name in chance.choices("abc", k=chance.randrange(4))
        )
        for _ in range(60)
    ]
    properties = [text.encode() for text in texts]
    for _ in range(60):
        joints = chance.choices([" AND ", " OR "], k=3)
        parts = [f"({chance.choice(PARTS)})" for _ in range(4)]
        text = parts[0] + "".join(map("".join, zip(joints, parts[1:], strict=True)))
        few = SqlFilter(text)
        many = SqlFilter(f"({text}) AND " + " AND ".join(["(a IS NULL OR TRUE)"] * 12))
        assert few.weight <= 32 < many.weight
        assert many.matches(properties) == few.matches(properties), text


def test_the_last_of_equal_names_counts() -> None:
    assert SqlFilter("a = 6").accepts(b"a\x015\x02a\x016\x02")


def test_a_bad_expression_is_refused() -> None:
    with pytest.raises(BadFilter, match="at character 4"):
        SqlFilter("a > ")


def test_it_says_what_it_filters() -> None:
    assert repr(SqlFilter("a > 1")) == "SqlFilter('a > 1')"


HOSTS = {4: b"\x7f\0\0\x01\0\0\x27\x10", 16: b"\0" * 15 + b"\x01\0\0\x27\x10"}


def record(text: bytes, *, born: int = 4, stored: int = 4, body: bytes = b"body") -> bytes:
    return pack(
        Record(0, 0, 1, 0, 7, 100, 0, 1, HOSTS[born], 2, HOSTS[stored], 0, 0, body, "topic", text)
    )


def v2(raw: bytes) -> bytes:
    """The record with a topic length of two bytes."""
    at = raw.index(b"\x05topic")
    longer = (len(raw) + 1).to_bytes(4, "big") + raw[4:at] + b"\0" + raw[at:]
    return longer.replace(MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"), 1)


def test_properties_are_found_behind_any_hosts() -> None:
    for born in HOSTS:
        for stored in HOSTS:
            raw = record(b"a\x01b", born=born, stored=stored)
            assert bytes(properties_of(memoryview(b"xx" + raw), 2, len(raw))) == b"a\x01b"


def test_properties_of_a_record_with_a_long_topic_length() -> None:
    raw = v2(record(b"a\x01b"))
    assert bytes(properties_of(memoryview(raw), 0, len(raw))) == b"a\x01b"


def test_what_matches_is_joined_and_counted() -> None:
    yes, no = record(b"keep\x011"), record(b"", body=b"")
    chunks = [memoryview(no + yes + yes + no), memoryview(yes + no + yes), memoryview(no)]
    found = matching(chunks, lambda raws: [raw == b"keep\x011" for raw in raws])
    assert [bytes(chunk) for chunk in found.chunks] == [yes + yes, yes, yes]
    assert (found.count, found.size_bytes) == (4, 4 * len(yes))


def test_nothing_matches() -> None:
    assert matching([memoryview(record(b""))], lambda raws: [False] * len(raws)) == Matches(
        [], 0, 0
    )


def test_a_filter_of_a_few_parts_looks_at_as_much_as_a_read_does() -> None:
    budget = Budget(MAX_COMPARISONS // MAX_SCANNED_ENTRIES)
    assert budget.count == MAX_SCANNED_ENTRIES
    budget.take(MAX_SCANNED_ENTRIES - 1, 1_000)
    assert not budget.is_spent
    budget.take(1, 0)
    assert budget.is_spent


def test_the_more_parts_the_fewer_messages() -> None:
    assert Budget(200).count == 100
    assert Budget(10**9).count == 1


def test_the_longer_the_properties_the_fewer_messages() -> None:
    assert Budget(4_000).size_bytes == MAX_SEARCHED_BYTES // 4_000
    budget = Budget(3)
    budget.take(1, MAX_BYTES - 1)
    assert not budget.is_spent
    budget.take(1, 30_000)
    assert budget.is_spent
