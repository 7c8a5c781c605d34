"""What SQL92 expressions say of messages."""

import pytest

from cometmq.filter.sql92 import BadFilter, SqlFilter
from cometmq.message.properties import encode

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


def test_the_last_of_equal_names_counts() -> None:
    assert SqlFilter("a = 6").accepts(b"a\x015\x02a\x016\x02")


def test_a_bad_expression_is_refused() -> None:
    with pytest.raises(BadFilter, match="at character 4"):
        SqlFilter("a > ")


def test_it_says_what_it_filters() -> None:
    assert repr(SqlFilter("a > 1")) == "SqlFilter('a > 1')"
