"""Figures over time are bounded, and rates survive a server's restart."""

from cometmq.dashboard.history import History


def test_rates_are_growth_a_second() -> None:
    history = History()
    assert history.rate("in", 1_000, 50) is None
    assert history.rate("in", 3_000, 250) == 100.0
    assert history.rate("in", 3_000, 250) is None
    assert history.rate("in", 4_000, 10) is None, "the server was started again"
    assert history.rate("in", 5_000, 30) == 20.0


def test_samples_and_series_are_bounded() -> None:
    history = History(samples_max=3, series_max=2)
    for at in range(5):
        history.add("a", at, at)
    assert [each.value for each in history.series("a")] == [2, 3, 4]
    history.add("b", 0, 1)
    history.add("a", 5, 5)
    history.add("c", 0, 1)
    assert history.series("b") == ()
    assert history.last("a") == 5
    assert history.last("b") is None
    for name in "abc":
        history.rate(name, 0, 1)
    assert history.rate("a", 1_000, 2) is None, "forgotten first"


def test_shared_histories_have_one_bound() -> None:
    whole = History(series_max=4)
    one, two = History(shared=whole), History(shared=whole)
    for n in range(4):
        one.add(n, 1, 1.0)
        two.add(n, 1, 2.0)
        two.rate(n, 1, 2.0)
    kept = [n for n in range(4) if one.series(n)], [n for n in range(4) if two.series(n)]
    assert kept == ([2, 3], [2, 3])
    assert (one.last(3), two.last(3)) == (1.0, 2.0)
    two.clear()
    assert two.last(3) is None
    assert one.last(3) == 1.0
    assert len(whole._series) == 2
    assert not whole._counters
