"""Waits by the monotonic clock."""

from cometmq.broker.scheduled.waits import Waits


def test_what_was_seen_waits_its_delay() -> None:
    waits = Waits(1_000)
    waits.look(3, 5_000)
    waits.look(3, 5_999)
    assert waits.over == 0
    waits.look(3, 6_000)
    assert waits.over == 3


def test_what_comes_later_waits_from_then_on() -> None:
    waits = Waits(1_000)
    waits.look(3, 5_000)
    waits.look(5, 5_400)
    waits.look(5, 6_000)
    assert waits.over == 3
    waits.look(5, 6_400)
    assert waits.over == 5


def test_what_comes_all_the_time_is_remembered_in_few_pieces_and_is_not_early() -> None:
    waits = Waits(6_400)
    for number in range(1, 6_400):
        waits.look(number, number)
        assert waits.over == 0
    assert len(waits._marks) <= 65
    for now_ms in range(6_400, 12_900):
        waits.look(6_399, now_ms)
        assert now_ms - 6_400 - 101 <= waits.over <= max(now_ms - 6_400, 0)
    assert waits.over == 6_399


def test_when_the_wall_clock_is_right_nothing_is_remembered() -> None:
    waits = Waits(1_000)
    waits.look(3, 0)
    waits.look(3, 1_000)
    waits.look(4, 1_000)
    waits.forget()
    assert (waits.over, len(waits._marks)) == (0, 0)
