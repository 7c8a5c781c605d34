"""The numbers of a run."""

from cometmq.demo.board import Board, Party, percentile


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
