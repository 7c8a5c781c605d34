"""A run is good when there is something to compare, all of it is equal and nothing went wrong."""

import dataclasses
from pathlib import Path

from cometmq.demo.compare import Comparison
from cometmq.demo.result import PartyResult, Result

EQUAL = PartyResult(Comparison("social", {}, 0, (), ""))
DIFFERENT = PartyResult(Comparison("order", {}, 1, (), ""))
GOOD = Result(1.0, 1, 0, 1, 1.0, {}, "", [EQUAL], None, {"base": Path("a")}, [], [])


def test_all_must_be_equal() -> None:
    assert GOOD.ok
    assert not dataclasses.replace(GOOD, parties=[EQUAL, DIFFERENT]).ok
    assert not dataclasses.replace(GOOD, parties=[]).ok


def test_nothing_may_have_gone_wrong() -> None:
    assert not dataclasses.replace(GOOD, problems=["the broker ended with code 1"]).ok
