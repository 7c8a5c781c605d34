"""Messages that an expression cannot be true of are told by a search for a piece of text: what is
selected so is what a plain evaluation of each message selects."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cometmq.filter.columns import join, texts_of
from cometmq.filter.pieces import MAX_PIECES, Pieces, pieces_of
from cometmq.filter.sql92 import SqlFilter, _compile
from cometmq.filter.sqltext import BadFilter, parse

MANY = ", ".join(f"'{number}'" for number in range(MAX_PIECES + 1))


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("a = 'x'", ["a\x01x"]),
        ("'x' = a", ["a\x01x"]),
        ("a = 'ä'", ["a\x01\xc3\xa4"]),
        ("a IN ('y', 'x')", ["a\x01x", "a\x01y"]),
        ("a STARTSWITH 'x'", ["a\x01x"]),
        ("a = 'x' OR b = 'y'", ["a\x01x", "b\x01y"]),
        ("(a = 'x' AND c > 1) OR b = 'y'", ["a\x01x", "b\x01y"]),
        ("a IN ('x', 'y') AND b = 'z' OR c = 'u'", ["b\x01z", "c\x01u"]),
    ],
)
def test_what_an_expression_needs(expression: str, texts: list[str]) -> None:
    found = pieces_of(parse(expression))
    assert found is not None
    assert list(found.texts) == texts


@pytest.mark.parametrize(
    "expression",
    [
        "a <> 'x'", "NOT (a = 'x')", "a NOT IN ('x')", "a > 1", "a = 1", "a = TRUE", "a = b",
        "a IS NULL", "a IS NOT NULL", "a = 'x' OR b > 1", "a = ''", f"a IN ({MANY})", "TRUE",
        "a NOT STARTSWITH 'x'", "a CONTAINS 'x'", "a = 'x\x02b'",
    ],
)  # fmt: skip
def test_expressions_that_may_be_true_without_any_piece(expression: str) -> None:
    assert pieces_of(parse(expression)) is None


@pytest.mark.parametrize("count", range(1, MAX_PIECES + 1))
def test_texts_with_one_of_several_pieces(count: int) -> None:
    pieces = Pieces(tuple(f"a\x01{number}" for number in range(count)))
    texts = [f"b\x010\x02a\x01{number}" for number in (9, 3, 2, 1, 0, 0, 8)]
    wanted = [at for at, number in enumerate((9, 3, 2, 1, 0, 0, 8)) if number < count]
    assert pieces.find(texts) == wanted


@pytest.mark.parametrize(
    ("texts", "decides"),
    [
        (["a\x01x", "b\x012\x02a\x01y\x02c\x01"], True),
        (["a\x01x\x02", "\x02a\x01x"], True),
        (["a\x01x", "a\x01xx"], False),
        (["a\x01x", "ba\x01x"], False),
        (["a\x01x\x02a\x01y", "b\x01a\x01x"], False),
        (["a\x01x\x02a\x01z", "a\x01x"], False),
        (["a\x01x\x02a\x01x\x02a\x01x", "ba\x01x"], False),
    ],
)
def test_when_a_piece_is_enough(texts: list[str], decides: bool) -> None:
    pieces = pieces_of(parse("a IN ('x', 'y')"))
    assert pieces is not None
    assert pieces.find(texts) == [0, 1]
    assert pieces.decide(join(texts)) is decides


# ------------------------------------------------------------------------- beside an evaluation

NAMES = st.sampled_from(["a", "a", "b", "aa"])
WORDS = ["x", "x", "xx", "5", "ä"]
CONSTANTS = st.sampled_from([*(f"'{word}'" for word in WORDS), "''", "5"])
SELECTIVE = ["{0} = {2}", "{2} = {0}", "{0} IN ('x', '5')", "{0} IN ('ä', {2})"]
OTHERS = [
    "{0} <> {2}", "{0} = {1}", "{0} > {1}", "{0} < 6", "{0} >= 2.5", "{0} NOT IN ('x')", "{0}",
    "{0} IN ('x', 'xx', 'ä', '5', 'b')", "{0} STARTSWITH 'x'", "{0} CONTAINS 'x'", "{0} IS NULL",
    "{0} NOT ENDSWITH 'x'", "{0} IS NOT NULL", "{0} BETWEEN -7 AND 5",
]  # fmt: skip
PLAIN = st.builds(
    lambda shape, name, other, constant: shape.format(name, other, constant),
    st.sampled_from(SELECTIVE * 3 + OTHERS),
    NAMES,
    NAMES,
    CONSTANTS,
)
EXPRESSIONS = st.recursive(
    PLAIN,
    lambda inner: st.builds(
        lambda shape, *sides: shape.format(*sides),
        st.sampled_from(["({0}) AND ({1})", "({0}) OR ({1})", "NOT ({0})", "{0} AND {1}"]),
        inner,
        inner,
    ),
    max_leaves=4,
)
VALUES = st.sampled_from([word.encode() for word in WORDS] + [b"", b"a\x01x", b"\xff"])
ENTRIES = st.builds(
    lambda name, value, end: name.encode() + value + end,
    NAMES,
    st.builds(lambda mark, value: mark + value, st.sampled_from([b"\x01"] * 9 + [b""]), VALUES),
    st.sampled_from([b"\x02"] * 9 + [b"\x02\x02"]),
)
#: Duplicates, empty values, names in values, what is no UTF-8, texts that do and do not end in 02.
PROPERTIES = st.builds(
    lambda entries, is_cut: b"".join(entries)[: -1 if is_cut else None],
    st.lists(ENTRIES, max_size=4),
    st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, st.lists(PROPERTIES, min_size=1, max_size=12))
@example("a = 'x'", [b"a\x01x\x02a\x015", b"aa\x01x", b"a\x01xx", b"b\x01a\x01x"])
@example("a = 'x' AND b > 1", [b"a\x01x\x02b\x01x", b"b\x01x", b"a\x01x\x02b\x015"])
@example("b > 1 OR a = 'x'", [b"a\x01x\x02b\x01x", b"a\x01x"])
def test_what_is_selected_is_what_a_plain_evaluation_says(
    expression: str, properties: list[bytes]
) -> None:
    try:
        node = parse(expression)
    except BadFilter:
        return
    evaluate = _compile(node)
    texts = texts_of(properties)
    wanted = [at for at, text in enumerate(texts) if evaluate(join([text]))[0] is True]
    assert SqlFilter(expression).select(texts) == wanted
