"""Repairs happen after a pause."""

from random import Random

from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.repairs import Repairs


def test_repairs_come_after_a_pause_until_they_rest() -> None:
    loop = SimLoop()
    repairs = Repairs(loop, Random(1))
    done: list[int] = []
    repairs.soon(lambda: done.append(repairs.clock.monotonic_ms()), (300,))
    begin_ms = repairs.clock.monotonic_ms()
    loop.run_until_complete(repairs.clock.sleep_ms(1_000))
    assert done == [begin_ms + 300]
    repairs.soon(lambda: done.append(0), (300,))
    repairs.rests = True
    loop.run_until_complete(repairs.clock.sleep_ms(1_000))
    assert len(done) == 1
    loop.close()
