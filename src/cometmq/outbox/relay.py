"""Relay: a loop that takes pages of the outbox, publishes and settles them.

    nothing to send, or another relay active   take again after a pause, or after wake()
    a topic fails                              pause it, longer each time; other topics continue
    the database fails                         reopen it after a pause

A page is bounded in rows and bytes, and the next page is taken only after this one is settled. So
with slow brokers the relay is slow too, and unsent rows stay in the table.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from cometmq.core.errors import SettingsError
from cometmq.outbox.publishing import Halves, Outcome, Publisher, checker, may_be_half
from cometmq.outbox.row import OutboxBusy, Page, Settled, WantedRows

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.outbox.row import Source, Sources

log = logging.getLogger(__name__)


P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """A thread that runs blocking calls one after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` in the thread; return its result or raise its exception."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Wait for the calls made so far, and end the thread. Blocks."""
        self._pool.shutdown()


_DAY_MS: Final = 24 * 60 * 60_000


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of a relay. Raises SettingsError for a number below its least value.

    A page has at most ``page_rows`` rows; their bodies exceed ``page_bytes`` by at most one body.
    """

    page_rows: int = 512
    page_bytes: int = 4 * 1024 * 1024
    #: Time after which no more rows of a page are sent, and the page is settled: a database may end
    #: a transaction that is open for too long.
    page_ms: int = 20_000
    #: Pause when there is nothing to send.
    poll_interval_ms: int = 100
    #: Pause after a failure; it doubles with each further one, up to ``max_retry_pause_ms``.
    retry_pause_ms: int = 200
    max_retry_pause_ms: int = 10_000
    #: Hold back rows after a refused row of their key, until an operator retries or discards it.
    hold_keys: bool = True
    #: Time for which published rows are kept, for inspection; 0 deletes them at once.
    keep_ms: int = 0
    #: Send rows without an order key as transactional messages of the producer ``group``. Published
    #: rows are then kept for a day, unless ``keep_ms`` is set.
    transactional: bool = False
    group: str = "OUTBOX_RELAY"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise SettingsError(name, f"{value!r} is no whole number from {least} on")


#: The least value of each number of the settings.
_LEAST: Final = {
    "page_rows": 1,
    "page_bytes": 1,
    "page_ms": 0,
    "poll_interval_ms": 0,
    "retry_pause_ms": 0,
    "max_retry_pause_ms": 0,
    "keep_ms": 0,
}


class _Step(Enum):
    """Result of a page: rows were taken, no row waits, or another relay is active."""

    WORKED = auto()
    IDLE = auto()
    BUSY = auto()


class Relay:
    """Publishes the rows of ``outbox`` over ``client``, which the application opens.

    ``async with Relay(client, outbox): ...`` runs it in the background, and finishes the current
    page at the end of the block. :meth:`run` publishes until :meth:`stop`, :meth:`drain` until no
    row is left to send.
    """

    def __init__(
        self, client: Client, outbox: Sources, settings: RelaySettings | None = None
    ) -> None:
        self.settings = settings or RelaySettings()
        #: Number of rows that this relay published, and of those it refused.
        self.published = 0
        self.refused = 0
        self._client = client
        self._outbox = outbox
        self._publisher = Publisher(client, hold_keys=self.settings.hold_keys)
        self._hold: tuple[Source, Worker] | None = None
        self._news = asyncio.Event()
        self._stopped = False
        self._failures: Counter[str] = Counter()
        self._rests_until_ms: dict[str, int] = {}
        self._checking = False
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Relay:
        self._running = self._client.session.tasks.spawn(
            self.run(), name=f"relay of {self._outbox.name}"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        assert self._running is not None
        await self._running

    def wake(self) -> None:
        """End the current pause, because there are rows to send."""
        self._news.set()

    def stop(self) -> None:
        """Make :meth:`run` return after its current page."""
        self._stopped = True
        self._news.set()

    async def run(self) -> None:
        """Publish until :meth:`stop`; failures are logged and retried."""
        failures = 0
        try:
            while not self._stopped:
                try:
                    step, _ = await self._step()
                except Exception as error:
                    failures += 1
                    pause_ms = self._pause_ms(failures)
                    self._log_failure(error, pause_ms)
                    await self._close()
                    await self._wait(pause_ms)
                    continue
                failures = 0
                if step is not _Step.WORKED:
                    await self._wait(self.settings.poll_interval_ms)
        finally:
            await self._close()

    def _log_failure(self, error: Exception, pause_ms: int) -> None:
        if isinstance(error, self._outbox.errors):
            text = "outbox_unavailable outbox=%s error=%s pause_ms=%d"
            log.warning(text, self._outbox.name, error, pause_ms)
        else:
            log.error("outbox_failed outbox=%s", self._outbox.name, exc_info=error)

    async def drain(self) -> int:
        """Publish until no row is left to send; return the number of rows published.

        Raises the error of a topic that cannot be sent to, OutboxBusy when another relay is active,
        and the database's errors.
        """
        before = self.published
        try:
            step = _Step.WORKED
            while step is _Step.WORKED:
                step, outcome = await self._step()
                for error in outcome.failed.values():
                    raise error
            if step is _Step.BUSY:
                raise OutboxBusy(f"another relay is using {self._outbox.name}")
        finally:
            await self._close()
        return self.published - before

    # ------------------------------------------------------------------ one page

    async def _step(self) -> tuple[_Step, Outcome]:
        """Take, publish and settle one page. Raises the database's errors."""
        source, worker = await self._opened()
        now_ms = self._client.session.clock.monotonic_ms()
        wanted = WantedRows(
            rows=self.settings.page_rows,
            page_bytes=self.settings.page_bytes,
            largest_bytes=self._client.config.max_message_bytes,
            resting=[topic for topic, until in self._rests_until_ms.items() if until > now_ms],
            hold_keys=self.settings.hold_keys,
        )
        page = await worker.call(source.take, wanted)
        if page is None:
            return _Step.BUSY, Outcome()
        outcome = Outcome(refused=dict(page.refused))
        if not page.rows and not page.refused:
            await worker.call(source.give_up)
            return _Step.IDLE, outcome
        async with Halves(self._client, self.settings.group) as halves:
            await self._publish(page, outcome, halves)
            try:
                await worker.call(source.settle, self._settled(outcome))
            except BaseException:
                # It is unknown whether the rows were marked, so the checker has to decide.
                halves.leave_open()
                raise
        self.published += len(outcome.published)
        self.refused += len(outcome.refused)
        self._rest(page, outcome)
        return _Step.WORKED, outcome

    async def _publish(self, page: Page, outcome: Outcome, halves: Halves) -> None:
        until_ms = self._client.session.clock.monotonic_ms() + self.settings.page_ms
        if not self.settings.transactional:
            await self._publisher.publish(page.rows, outcome, until_ms)
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(halves.send(filter(may_be_half, page.rows), outcome, until_ms))
            others = [row for row in page.rows if not may_be_half(row)]
            group.create_task(self._publisher.publish(others, outcome, until_ms))

    def _settled(self, outcome: Outcome) -> Settled:
        settings = self.settings
        keep_ms = settings.keep_ms or (_DAY_MS if settings.transactional else 0)
        now_ms = self._client.session.clock.wall_ms()
        return Settled(outcome.published, outcome.refused, now_ms, keep_ms)

    def _rest(self, page: Page, outcome: Outcome) -> None:
        """Pause the topics of the page that failed; end the pauses of the others."""
        now_ms = self._client.session.clock.monotonic_ms()
        for topic in {row.topic for row in page.rows}:
            error = outcome.failed.get(topic)
            if error is None:
                self._failures.pop(topic, None)
                self._rests_until_ms.pop(topic, None)
                continue
            self._failures[topic] += 1
            pause_ms = self._pause_ms(self._failures[topic])
            self._rests_until_ms[topic] = now_ms + pause_ms
            log.warning("outbox_topic_paused topic=%s error=%s pause_ms=%d", topic, error, pause_ms)

    def _pause_ms(self, failures: int) -> int:
        settings = self.settings
        return min(settings.max_retry_pause_ms, settings.retry_pause_ms << min(failures - 1, 16))

    async def _wait(self, pause_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._news.wait()
        self._news.clear()

    # ------------------------------------------------------------------ the database

    async def _opened(self) -> tuple[Source, Worker]:
        if self._hold is None:
            worker = Worker("outbox relay")
            try:
                self._hold = await worker.call(self._outbox.open), worker
            except BaseException:
                worker.close()
                raise
            if self.settings.transactional and not self._checking:
                self._checking = True
                self._client.transaction_checker(self.settings.group)(checker(self._sent_as))
        return self._hold

    async def _sent_as(self, row_id: int) -> str | None:
        if self._hold is None:
            return None  # undecided: the broker will ask again
        source, worker = self._hold
        return await worker.call(source.sent_as, row_id)

    async def _close(self) -> None:
        if self._hold is not None:
            (source, worker), self._hold = self._hold, None
            try:
                await worker.call(source.close)
            finally:
                worker.close()
