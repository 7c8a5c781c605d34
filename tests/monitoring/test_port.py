"""Whether servers are alive and ready, and how their metrics are fetched."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from cometmq.core.clock import Slices, SystemClock, VirtualClock
from cometmq.monitoring.port import HANGS_MS, MonitoringPort
from cometmq.monitoring.readiness import Readiness, StartProgress
from cometmq.monitoring.series import Kind, KnownFrom, Metric, Series
from cometmq.net.tasks import Tasks
from tests.monitoring.scraping import Scrape, fetch, fetched, scrape

TIMES = Metric("collected_total", Kind.COUNTER, "collections", (), KnownFrom.OURS)


class Watched:
    """A server whose state the test sets."""

    shared_labels: Mapping[str, str] = {"node": "a"}

    def __init__(self) -> None:
        self.progress = StartProgress()
        self.collected = 0

    def readiness(self) -> Readiness:
        progress = self.progress
        return Readiness("it", progress.is_serving, progress.text, progress.is_starting)

    def start_series(self) -> list[Series]:
        return []

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        self.collected += 1
        series = Series(TIMES, 1)
        series.add(self.collected)
        yield series
        await slices.pause()


@asynccontextmanager
async def running(part: Watched) -> AsyncIterator[str]:
    tasks = Tasks()
    port = MonitoringPort("127.0.0.1", 0, clock=SystemClock(), tasks=tasks)
    port.parts.append(part)
    number = port.start()
    try:
        yield f"127.0.0.1:{number}"
    finally:
        await port.close()
        await tasks.close()


async def test_readiness_is_told_while_the_loop_is_blocked() -> None:
    part = Watched()
    async with running(part) as address:
        part.progress.begin("recovers its store")
        part.progress.reading(1_000, 9_000)
        part.progress.reading(5_000, 9_000)
        # What follows blocks this loop, as recovery does.
        ready, alive = fetch(address, "/readyz"), fetch(address, "/healthz")
        assert (ready.status, ready.text) == (
            503, "it: recovers its store: 50 % of the log is read (5000 of 9000 bytes)\n"
        )  # fmt: skip
        assert alive.status == 200
        assert fetch(address, "/metrics").status == 200
        part.progress.done()
        ready = fetch(address, "/readyz")
        assert (ready.status, ready.text) == (200, "it: serves\n")
        part.progress.ending()
        assert fetch(address, "/readyz").text == "it: stops\n"


async def test_metrics_are_collected_once_a_second() -> None:
    part = Watched()
    part.progress.done()
    async with running(part) as address:
        answers = await asyncio.gather(*(fetched(address, "/metrics") for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert part.collected <= 2
        first = Scrape(answers[0].text).value("collected_total", node="a")
        async with asyncio.timeout(60):
            while (await scrape(address)).value("collected_total") <= first:
                await asyncio.sleep(0.1)


async def test_metrics_that_fail_are_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Watched):
        async def series(self, slices: Slices) -> AsyncIterator[Series]:
            self.collected += 1
            if self.collected:
                raise ValueError("a bug")
            yield Series(TIMES, 0)

    part = Failing()
    part.progress.done()
    async with running(part) as address:
        answers = await asyncio.gather(*(fetched(address, "/metrics") for _ in range(5)))
        assert {answer.status for answer in answers} == {500}
        assert part.collected == 1, "those that waited get the same answer"
    assert "metrics_failed error=ValueError('a bug')" in caplog.text


async def test_a_loop_that_hangs_is_not_alive() -> None:
    clock = VirtualClock()
    tasks = Tasks()
    port = MonitoringPort("127.0.0.1", 0, clock=clock, tasks=tasks)
    part = Watched()
    port.parts.append(part)
    clock.advance(HANGS_MS + 1)
    assert port.health().status == 200, "a start may block the loop"
    part.progress.done()
    assert port.health().status == 503
    assert b"30 s" in port.health().body


async def test_nothing_is_ready_before_a_server_was_added() -> None:
    port = MonitoringPort("127.0.0.1", 0, clock=SystemClock(), tasks=Tasks())
    assert port.ready().status == 503


async def test_an_unknown_path_names_the_known_ones() -> None:
    async with running(Watched()) as address:
        answer = await fetched(address, "/other")
        assert answer.status == 404
        assert "/metrics" in answer.text


async def test_a_port_in_use_is_an_error_of_the_start() -> None:
    async with running(Watched()) as address:
        taken = int(address.partition(":")[2])
        port = MonitoringPort("127.0.0.1", taken, clock=SystemClock(), tasks=Tasks())
        with pytest.raises(OSError, match="in use") as caught:
            port.start()
        assert caught.value.filename == address
        await port.close()


async def test_no_thread_is_left() -> None:
    async with running(Watched()):
        assert any(each.name == "cometmq-http" for each in threading.enumerate())
    deadline = time.monotonic() + 60
    while any(each.name == "cometmq-http" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
