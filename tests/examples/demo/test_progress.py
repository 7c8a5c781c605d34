"""The numbers of a run, and its result."""

import dataclasses
from pathlib import Path

from examples.demo.compare import Comparison
from examples.demo.progress import Board, Party, PartyResult, Result, percentile


def test_percentiles_are_values_that_occurred() -> None:
    values = list(range(100, 0, -1))
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile([7], 1) == 7
    assert percentile([], 50) == 0


def test_a_party_counts_what_it_took() -> None:
    party = Party("social")
    party.outcomes.update(["new", "new", "stale", "repeated", "failed"])
    assert party.taken == 4
    party.lags_ms += [5, 1, 9]
    assert party.lag_ms(50) == 5


def test_events_are_kept_in_order() -> None:
    board = Board(10, {})
    board.say("one")
    board.say("two")
    assert board.events == ["one", "two"]


EQUAL = PartyResult(Comparison("social", {}, 0, (), ""))
DIFFERENT = PartyResult(Comparison("order", {}, 1, (), ""))
GOOD = Result(1.0, 1, 0, 1, 1.0, {}, "", [EQUAL], None, {"base": Path("a")}, [], [])


def test_all_must_be_equal() -> None:
    assert GOOD.ok
    assert not dataclasses.replace(GOOD, parties=[EQUAL, DIFFERENT]).ok
    assert not dataclasses.replace(GOOD, parties=[]).ok


def test_nothing_may_have_gone_wrong() -> None:
    assert not dataclasses.replace(GOOD, problems=["the broker ended with code 1"]).ok
