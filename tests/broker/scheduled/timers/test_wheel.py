"""The near future by ticks."""

from cometmq.broker.scheduled.timers.wheel import TICK_MS, Wheel, tick_of
from cometmq.store.timerfiles import ROW


def test_nothing_is_early_and_a_tick_late_at_most() -> None:
    for due_ms in (0, 1, TICK_MS - 1, TICK_MS, TICK_MS + 1, 1_700_000_000_013):
        assert 0 <= tick_of(due_ms) * TICK_MS - due_ms < TICK_MS


def test_ticks_come_in_their_order_and_rows_in_theirs() -> None:
    wheel = Wheel()
    assert wheel.next_tick() is None
    rows = [ROW.pack(number, number, number, 1) for number in range(4)]
    wheel.put(7, rows[0])
    wheel.put(3, rows[1])
    wheel.put(7, rows[2])
    wheel.put(5, rows[3])
    assert wheel.count == 4
    assert wheel.next_tick() == 3
    assert wheel.take() == rows[1]
    assert wheel.take() == rows[3]
    assert wheel.next_tick() == 7
    assert wheel.take() == rows[0] + rows[2]
    assert (wheel.count, wheel.next_tick()) == (0, None)
