"""Reading SQL92 expressions."""

from contextlib import suppress
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.filter import sqltext
from cometmq.filter.sqltext import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_PARTS,
    MAX_TREE_DEPTH,
    MAX_WORDS,
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
    count_words,
    measure,
    parse,
)
from tests.pace import slowness

#: Processor time in which 64 KB are read, with much to spare.
LIMIT_S = 0.5
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
        ("a > - 5 -- five\n", Compare(">", A, Negative(Constant(5)))),
        ("a = 00.5", Compare("=", A, Constant(0.5))),
        ("a = 05e0", Compare("=", A, Constant(5.0))),
        ("a = 'x''y'", Compare("=", A, Constant("x'y"))),
        ("a = 9223372036854775807L", Compare("=", A, Constant((1 << 63) - 1))),
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
        ("a = 000", 5, "expected the end"),
        ("a = 0 1", 6, "expected the end"),
        ("a = 1e5 012", 8, "expected the end"),
        ("a = 'x''y", 4, "a string that does not end"),
        ("a = 1" + "0" * 5_000, 4, "does not fit 64 bits"),
        ("a --", 2, "expected the end"),
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
            parse(opening * 1_000 + "a")
        with pytest.raises(BadFilter, match=f"more than {MAX_WORDS} words"):
            parse(opening * 10_000 + "a")
    assert isinstance(parse(" AND ".join(["a"] * (MAX_WORDS // 2))), All)
    with pytest.raises(BadFilter, match="words"):
        parse(" AND ".join(["a"] * (MAX_WORDS // 2 + 1)))
    for comment in ("/**/", "--\n"):
        assert parse(comment * (MAX_WORDS - 1) + "a") == A
        with pytest.raises(BadFilter, match=f"more than {MAX_WORDS} words"):
            parse(comment * MAX_WORDS + "a")
        assert count_words(comment * MAX_WORDS) == MAX_WORDS
    with pytest.raises(BadFilter, match="half a character"):
        parse("a = '\ud800'")


@pytest.mark.parametrize("chain", ["a = a", " = a", " <> a", " IS NULL", " IS NOT NULL"])
def test_chains_nest_without_parentheses(chain: str) -> None:
    text = "a" + chain.removeprefix("a")
    step = chain.removeprefix("a")
    assert measure(parse(text + step * 40))[0] > 40
    for steps in (MAX_TREE_DEPTH, 1_000):
        with pytest.raises(BadFilter, match=r"nests deeper|words"):
            parse(text + step * steps)


def test_what_is_evaluated_twice_counts_twice() -> None:
    text = "a"
    for _ in range(8):
        text = f"-({text} BETWEEN 1 AND 2)"
    assert measure(parse(f"{text} = 5"))[1] > 1_000
    for _ in range(20):
        text = f"-({text} BETWEEN 1 AND 2)"
    with pytest.raises(BadFilter, match=f"parts, the limit is {MAX_PARTS}"):
        parse(f"{text} = 5")


def test_levels_and_parts_of_a_tree() -> None:
    assert measure(parse("a")) == (1, 1)
    assert measure(parse("a = 1 OR NOT (b IN ('x') AND c IS NULL)")) == (5, 9)


def test_measuring_looks_at_each_node_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    look = sqltext._operands

    def counted(node: Node) -> tuple[Node, ...]:
        looked.append(node)
        return look(node)

    monkeypatch.setattr(sqltext, "_operands", counted)
    for text, inner in (
        (" AND ".join(["a = 1"] * 500), 501),
        ("a" + " = a" * 100, 100),
        (" OR ".join(["a NOT IN ('x')"] * 100), 101),
    ):
        tree = parse(text)
        looked.clear()
        measure(tree)
        assert inner <= len(looked) <= 2 * inner


@pytest.mark.parametrize(
    "text",
    [
        "0" * 60_000, "-" * 60_000, "a = " + "-" * 60_000, "-" * 60_000 + "\n", "'" * 60_001,
        "a = " + "'x" * 30_001, "1" * 60_000, "a = " + "1" * 60_000, "a = 1" + "0" * 60_000 + "L",
        "a = " + "0" * 60_000 + "1", "a = 1." + "0" * 60_000 + "1", "a = 1e" + "9" * 60_000,
        "a = 1" + "0" * 60_000 + "e", "0.e" * 20_000, "a=" * 30_000 + "a", "a IS NULL " * 6_000,
        "/*" * 30_000, "--" * 30_000, "- -" * 20_000, " " * 60_000 + "'", "a" * 60_000 + " = 1",
        "a = " + "(" * 60_000, "-(a BETWEEN 1 AND 2) BETWEEN " * 2_000, "NOT " * 15_000,
        "a IN (" + "'x'," * 15_000, "--\n" * 20_000 + "a",
    ],
)  # fmt: skip
def test_long_texts_are_read_or_refused_at_once(text: str) -> None:
    parse("a = 1")
    begun = process_time()
    problem = ""
    try:
        parse(text)
    except BadFilter as error:
        problem = str(error)
    assert len(problem) < 2_000
    assert process_time() - begun < LIMIT_S * slowness()


WORDS = ["a", "5", "'x'", "(", ")", "NOT", "AND", "OR", "=", "<", "IN", "IS", "NULL", "-", ","]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(BadFilter):
        parse(text)
