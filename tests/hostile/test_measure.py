"""No parser of foreign bytes takes longer than its share; the measurement finds those that do."""

import re

import pytest

from tests.hostile import grammar, measure
from tests.hostile.parsers import PARSERS, Parser

#: One shape of so many is tried in a usual run.
SAMPLE = 7


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_parser_is_linear(parser: Parser) -> None:
    start = PARSERS.index(parser)
    assert [str(each) for each in measure.complaints([parser], each=SAMPLE, start=start)] == []


@pytest.mark.deep
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_parser_is_linear_for_every_shape(parser: Parser) -> None:
    assert [str(each) for each in measure.complaints([parser])] == []


def doubling(data: bytes) -> object:
    """Exponential in the depth of brackets."""
    return sum(1 for _ in range(min(2 ** data.count(b"{"), 1 << 22)))


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (lambda data: re.search(rb"0+x", data), "takes"),
        (lambda data: [data[at:].count(b"a") for at in range(len(data))], "takes"),
        (doubling, "takes"),
        (lambda data: int(data.strip(b"x") if data.strip(b"9x") == b"" else 0), "raises"),
        (lambda data: data.decode() and 0, "raises UnicodeDecodeError"),
    ],
)
def test_a_planted_fault_is_found(planted: object, found: str) -> None:
    assert callable(planted)
    parser = Parser("planted", planted, grammar.JSON)
    assert found in str(next(measure.complaints([parser])))
