"""SQL92 verdicts beside those of RocketMQ's own filter, over thousands of random expressions."""

from __future__ import annotations

import random

from cometmq.filter.sql92 import BadFilter, SqlFilter
from cometmq.message.properties import encode
from tests.compat.driver import Driver

EXPRESSIONS = 4_000
MESSAGES: list[dict[str, str]] = [
    {},
    {"a": "5", "b": "x"},
    {"a": "-7", "b": "5", "c": "true"},
    {"a": "2.5", "b": "it's", "c": "False"},
    {"a": "3000000000", "b": "3000000000"},
    {"a": " 5 ", "b": "1e3", "c": "5f"},
    {"a": "NaN", "b": "+5", "c": "007"},
    {"c": "ä"},
    # Zeros before a number mean nothing, and there may be any number of digits.
    {"a": "0" * 5_000 + "5", "b": "1" * 5_000, "c": "1" * 400 + ".5"},
]
NAMES = ["a", "b", "c", "none"]
VALUES = ["5", "-7", "2.5", "1e3", "3000000000", "5.0", "7L", "'x'", "'5'", "'it''s'", "TRUE"]
VALUES += ["FALSE", "NULL", "'ä'", "+5", ".5"]
SHAPES = ["{0} = {1}", "{0} <> {1}", "{0} > {1}", "{0} >= {1}", "{0} < {1}", "{0} <= {1}"]
SHAPES += ["{0} BETWEEN {1} AND {2}", "{0} NOT BETWEEN {1} AND {2}", "{0} IS NULL", "{0}"]
SHAPES += ["{0} IS NOT NULL", "{0} IN ('x', '5')", "{0} NOT IN ('x', '5')", "NOT {0}"]
SHAPES += ["NOT {0} = {1}", "-{0} < {1}", "{0} = {1} = {2}", "{0} > {1} > {2}"]


def operand(chance: random.Random) -> str:
    return chance.choice(NAMES if chance.random() < 0.6 else VALUES)


def expression(chance: random.Random, depth: int) -> str:
    """Something that reads like a filter; not all of it is one."""
    if depth and chance.random() < 0.6:
        left, right = expression(chance, depth - 1), expression(chance, depth - 1)
        shape = chance.choice(["{0} AND {1}", "{0} OR {1}", "NOT ({0})", "({0}) = ({1})", "({0})"])
        return shape.format(left, right)
    shape = chance.choice(SHAPES)
    return shape.format(*(operand(chance) for _ in range(3)))


def ours(text: str) -> list[bool] | None:
    try:
        found = SqlFilter(text)
    except BadFilter:
        return None
    return [found.accepts(encode(message)) for message in MESSAGES]


def test_verdicts_are_those_of_rocketmq(driver: Driver) -> None:
    chance = random.Random(20_261_121)
    texts = [expression(chance, 3) for _ in range(EXPRESSIONS)]
    theirs = driver.ask("verdicts", expressions=texts, messages=MESSAGES)
    assert isinstance(theirs, list)
    different = {
        text: (mine, verdict)
        for text, verdict in zip(texts, theirs, strict=True)
        if (mine := ours(text)) != verdict
    }
    assert different == {}
    assert sum(verdict is None for verdict in theirs) > 100
    assert sum(verdict is not None and any(verdict) for verdict in theirs) > 500  # type: ignore[arg-type]
