"""Clocks of simulated machines."""

from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.loop import SimLoop


def test_both_kinds_of_time_follow_the_loop() -> None:
    loop = SimLoop()
    clock = SimClock(loop)
    wall_ms, monotonic_ns = clock.wall_ms(), clock.monotonic_ns()
    loop.run_until_complete(clock.sleep_ms(1_500))
    assert clock.wall_ms() == wall_ms + 1_500
    assert clock.monotonic_ns() == monotonic_ns + 1_500_000_000
    loop.dispose()


def test_the_wall_clock_jumps_alone() -> None:
    loop = SimLoop()
    clock, other = SimClock(loop), SimClock(loop)
    clock.jump_wall(-5_000)
    assert clock.wall_ms() == other.wall_ms() - 5_000
    assert clock.monotonic_ms() == other.monotonic_ms()
    loop.dispose()


def test_sleeps_end_at_multiples_of_the_grain() -> None:
    loop = SimLoop()
    clock = SimClock(loop, grain_ms=200)
    begin_ms = clock.monotonic_ms()
    assert begin_ms % 200 == 0
    loop.run_until_complete(clock.sleep_ms(1))
    assert clock.monotonic_ms() == begin_ms + 200
    loop.run_until_complete(clock.sleep_ms(400))
    assert clock.monotonic_ms() == begin_ms + 600
    loop.run_until_complete(clock.sleep_ms(0))
    assert clock.monotonic_ms() == begin_ms + 600
    loop.dispose()


def test_a_cancelled_sleep_leaves_no_timer_that_fires() -> None:
    loop = SimLoop()
    clock = SimClock(loop)

    async def main() -> None:
        task = loop.create_task(clock.sleep_ms(1_000))
        await clock.sleep_ms(1)
        task.cancel()
        await clock.sleep_ms(2_000)
        assert task.cancelled()

    loop.run_until_complete(main())
    loop.dispose()
