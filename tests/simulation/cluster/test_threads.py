"""Threads on the loop."""

from random import Random

import pytest

from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.loop import Process, SimLoop
from tests.simulation.cluster.threads import LoopThreads


def order_of(seed: int) -> list[int]:
    """Return the order in which ten jobs of two executors run."""
    loop, process = SimLoop(), Process("p", "127.0.0.1")
    threads = LoopThreads(loop, process, Random(seed))
    executors = threads.executor(1), threads.executor(2)
    found: list[int] = []

    async def main() -> None:
        jobs = [
            loop.run_in_executor(executors[number % 2], found.append, number)
            for number in range(10)
        ]
        for job in jobs:
            await job

    task = loop.launch(process, main())
    loop.run_until_complete(task)
    loop.dispose()
    return found


def test_jobs_run_once_in_an_order_from_the_seed() -> None:
    orders = [order_of(seed) for seed in range(5)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders == [order_of(seed) for seed in range(5)]
    assert len({tuple(order) for order in orders}) > 1


def test_a_result_that_is_waited_for_is_computed_at_once() -> None:
    loop, process = SimLoop(), Process("p", "127.0.0.1")
    executor = LoopThreads(loop, process, Random(1)).executor(1)
    assert executor.submit(lambda: 5).result() == 5
    failed = executor.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    loop.dispose()


def test_jobs_of_an_ended_process_do_not_run() -> None:
    loop, process = SimLoop(), Process("p", "127.0.0.1")
    executor = LoopThreads(loop, process, Random(1)).executor(1)
    found: list[int] = []
    executor.submit(found.append, 1)
    process.end()
    loop.run_until_complete(SimClock(loop).sleep_ms(1_000))
    assert found == []
    loop.dispose()


def test_a_job_whose_caller_gave_up_does_not_run() -> None:
    loop, process = SimLoop(), Process("p", "127.0.0.1")
    executor = LoopThreads(loop, process, Random(1)).executor(1)
    found: list[int] = []

    async def main() -> None:
        given_up = loop.create_task(wait())
        await SimClock(loop).sleep_ms(0)
        given_up.cancel()
        await SimClock(loop).sleep_ms(1_000)

    async def wait() -> None:
        await loop.run_in_executor(executor, found.append, 1)

    loop.run_until_complete(loop.launch(process, main()))
    assert found == []
    assert not executor.jobs
    loop.dispose()
