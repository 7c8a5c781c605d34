"""Jobs run on command, in the order of the seed, and stop at file operations."""

import threading
from concurrent.futures import CancelledError, Future
from random import Random

import pytest

from tests.simulation.faults.threads import JobAbandoned, SteppedThreads


def steps(threads: SteppedThreads, found: list[str], name: str, count: int) -> None:
    for number in range(count):
        threads.pause()
        found.append(f"{name}{number}")


def order(seed: int, split: float) -> list[str]:
    threads = SteppedThreads(Random(seed), split=split)
    found: list[str] = []
    for name in "ab":
        threads.executor(1).submit(steps, threads, found, name, 4)
    assert found == []
    while threads.step():
        found.append("|")
    return found


def test_a_job_runs_when_it_is_told_to() -> None:
    threads = SteppedThreads(Random(0), split=0)
    future = threads.executor(1).submit(lambda: threading.current_thread())
    assert threads.busy
    assert not future.done()
    assert threads.step()
    assert future.result() is threading.current_thread()
    assert not threads.step()


def test_jobs_take_turns_at_file_operations() -> None:
    orders = {tuple(order(seed, 1)) for seed in range(30)}
    assert len(orders) > 20
    for found in orders:
        steps_of_a = [text for text in found if text.startswith("a")]
        assert steps_of_a == ["a0", "a1", "a2", "a3"]
    whole = {tuple(order(seed, 0)) for seed in range(30)}
    first, second = [f"a{n}" for n in range(4)], [f"b{n}" for n in range(4)]
    assert whole == {(*first, "|", *second, "|"), (*second, "|", *first, "|")}


@pytest.mark.parametrize("split", [0, 0.5, 1])
def test_a_seed_gives_one_order(split: float) -> None:
    assert all(order(seed, split) == order(seed, split) for seed in range(10))


def test_an_executor_keeps_the_order_of_its_jobs() -> None:
    for seed in range(20):
        threads = SteppedThreads(Random(seed), split=1)
        found: list[str] = []
        executor = threads.executor(1)
        for name in "ab":
            executor.submit(steps, threads, found, name, 2)
        while threads.step():
            pass
        assert found == ["a0", "a1", "b0", "b1"]


@pytest.mark.parametrize("split", [0, 1])
def test_who_waits_for_a_job_runs_it(split: float) -> None:
    threads = SteppedThreads(Random(1), split=split)
    found: list[str] = []
    executor = threads.executor(2)
    executor.submit(steps, threads, found, "a", 2)
    future = executor.submit(steps, threads, found, "b", 2)
    assert future.result() is None
    assert found[-1] == "b1"
    assert future.exception() is None


def test_errors_are_those_of_the_call() -> None:
    threads = SteppedThreads(Random(0), split=0)
    future = threads.executor(1).submit(lambda: 1 / 0)
    assert isinstance(future.exception(), ZeroDivisionError)


@pytest.mark.parametrize("split", [0, 1])
def test_a_shutdown_waits_for_what_is_left(split: float) -> None:
    threads = SteppedThreads(Random(1), split=split)
    found: list[str] = []
    executor = threads.executor(1)
    for name in "abc":
        executor.submit(steps, threads, found, name, 1)
    executor.shutdown()
    assert found == ["a0", "b0", "c0"]
    assert not threads.busy


def test_an_abandoned_job_goes_no_further() -> None:
    started: list[Future[None]] = []
    for seed in range(20):
        threads = SteppedThreads(Random(seed), split=1)
        found: list[str] = []
        futures = [threads.executor(1).submit(steps, threads, found, name, 9) for name in "ab"]
        threads.step()
        before = list(found)
        threads.abandon()
        assert found == before
        assert not threads.busy
        for future in futures:
            assert future.done()
            if not future.cancelled() and isinstance(future.exception(), JobAbandoned):
                started.append(future)
            elif future.cancelled():
                with pytest.raises(CancelledError):
                    future.result()
    assert started
    assert threading.active_count() < 20
