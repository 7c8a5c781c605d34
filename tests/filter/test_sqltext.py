"""Reading SQL92 expressions."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.filter.sqltext import (
    MAX_CHARS,
    MAX_DEPTH,
    All,
    Any,
    BadFilter,
    Compare,
    Constant,
    IsNull,
    Negative,
    Node,
    Not,
    OneOf,
    Property,
    Search,
    parse,
)

A = Property("a")
B = Property("b")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", A),
        ("a = 5", Compare("=", A, Constant(5))),
        ("a <> 'it''s'", Not(Compare("=", A, Constant("it's")))),
        ("a > --5", Compare(">", A, Negative(Negative(Constant(5))))),
        ("a >= +.5e1", Compare(">=", A, Constant(5.0))),
        ("a <= 7L", Compare("<=", A, Constant(7))),
        ("a is null", IsNull(A)),
        ("a IS NOT NULL", Not(IsNull(A))),
        ("a IN ('x', 'y')", OneOf("a", frozenset("xy"))),
        ("a NOT IN ('x')", Not(OneOf("a", frozenset("x")))),
        ("a CONTAINS 'x'", Search("CONTAINS", "a", "x")),
        ("a not startswith 'x'", Not(Search("STARTSWITH", "a", "x"))),
        ("a BETWEEN 1 AND 2", All((Compare(">=", A, Constant(1)), Compare("<=", A, Constant(2))))),
        (
            "a NOT BETWEEN 1 AND b",
            Any((Compare("<", A, Constant(1)), Compare(">", A, B))),
        ),
        ("a OR b AND TRUE", Any((A, All((B, Constant(True)))))),
        ("(a OR b) AND a", All((Any((A, B)), A))),
        ("a AND b AND a", All((A, B, A))),
        ("NOT a = 5", Compare("=", Not(A), Constant(5))),
        ("NOT (a = 5)", Not(Compare("=", A, Constant(5)))),
        ("$a_1=b -- all of it\n", Compare("=", Property("$a_1"), B)),
        ("a /* the * first */ = b", Compare("=", A, B)),
    ],
)
def test_trees(text: str, tree: Node) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "found the end"),
        ("a =", 3, "found the end"),
        ("a = 5 b", 6, "expected the end, found 'b'"),
        ("5", 0, "this is a value"),
        ("a AND 'x'", 6, "this is a value"),
        ("NOT 7", 4, "this is a value"),
        ("a = 'x", 4, "a string that does not end"),
        ("a = 012", 5, "expected the end"),
        ("a ; b", 2, "';' begins no part"),
        ("a > 'x'", 7, "only numbers and properties can be compared by >"),
        ("a > TRUE", 8, "only numbers"),
        ("a > 1 > 2", 9, "only numbers"),
        ("a = NULL", 8, "IS NULL"),
        ("TRUE = 5", 8, "TRUE and FALSE"),
        ("a BETWEEN 3 AND 2", 17, "the lower value first"),
        ("a BETWEEN 'x' AND 'y'", 21, "only numbers"),
        ("a IN (5)", 6, "a string in single quotes"),
        ("a IN ('x'", 9, "expected )"),
        ("5 IN ('x')", 5, "wants a property"),
        ("a IS 5", 5, "expected NULL"),
        ("a = 9223372036854775808", 4, "does not fit 64 bits"),
        ("a = 1e999", 4, "greater than a double"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, position: int, problem: str) -> None:
    with pytest.raises(BadFilter) as caught:
        parse(text)
    assert problem in caught.value.problem
    assert (caught.value.position, caught.value.expression) == (position, text)


def test_bounds() -> None:
    with pytest.raises(BadFilter, match="longer than"):
        parse(" " * (MAX_CHARS + 1))
    deep = MAX_DEPTH // 2
    assert parse("(" * deep + "a" + ")" * deep) == A
    for opening in ("(", "NOT ", "- "):
        with pytest.raises(BadFilter, match="nests deeper"):
            parse(opening * 10_000 + "a")
    assert isinstance(parse(" AND ".join(["a"] * 5_000)), All)


WORDS = ["a", "5", "'x'", "(", ")", "NOT", "AND", "OR", "=", "<", "IN", "IS", "NULL", "-", ","]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(BadFilter):
        parse(text)
