"""HTTP port of a process: /metrics, /healthz and /readyz.

    thread of the servers       thread of the port
    StartProgress ------------> /readyz: is every server ready, how far is a start
    beat      ----------------> /healthz: does the event loop run
    series    <---------------> /metrics: asks the servers' loop, and waits for the text

The port has a thread with an event loop of its own, because a recovering store blocks the servers'
loop. Metrics are collected in the servers' loop, in slices: a thread would compete with it for the
interpreter lock, and delay requests more. Requests that come while metrics are collected, or within
a second, get the same text, so that no client can keep the loop busy with them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.core.clock import Slices
from cometmq.monitoring.exposition import CONTENT_TYPE, text_pieces
from cometmq.monitoring.http import REQUEST_MAX_BYTES, Answer, HttpConnections
from cometmq.monitoring.process import process_text
from cometmq.net.server import Reserve, name_address, reserve

if TYPE_CHECKING:
    import socket

    from cometmq.core.clock import Clock
    from cometmq.monitoring.readiness import Readiness
    from cometmq.monitoring.series import Series
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

#: Time for metrics; Prometheus waits 10 s unless it is told otherwise.
COLLECT_TIMEOUT_S: Final = 9
#: Age up to which metrics are served again.
FRESH_S: Final = 1.0
#: Pause after each millisecond of collecting. Without it, a client of the server with one request
#: in flight would wait for one piece of metrics before each answer.
REST_MS: Final = 2
BEAT_MS: Final = 1_000
#: The event loop counts as hanging if it has not turned for this long. A turn takes a fraction of a
#: second even under overload.
HANGS_MS: Final = 30_000
_CLOSE_TIMEOUT_S: Final = 5


class Monitored(Protocol):
    """Server whose state the port shows."""

    @property
    def shared_labels(self) -> Mapping[str, str]:
        """Labels that every series of the server has."""
        ...

    def readiness(self) -> Readiness:
        """Return whether the server is ready. Called in the thread of the port, at any time."""
        ...

    def start_series(self) -> list[Series]:
        """Return the metrics of a server that is starting. Called in the thread of the port."""
        ...

    def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Yield the metrics of a running server. Called in the thread of the servers."""
        ...


class MonitoringPort:
    """Serves HTTP for ``parts``, the servers of this process, which may be added at any time.

    ``names`` are the host names that requests may contain. Build it in the servers' event loop;
    call :meth:`start` and :meth:`close` once each.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        names: Iterable[str] = (),
        clock: Clock,
        tasks: Tasks,
        reserve: Reserve = reserve,
    ) -> None:
        self._address = host, port
        self._clock = clock
        self._tasks = tasks
        self._reserve = reserve
        self._servers_loop = asyncio.get_running_loop()
        self._beat_ms = clock.monotonic_ms()
        self._thread: threading.Thread | None = None
        #: The function that ends the thread, once the thread serves; or the error of its start.
        self._stops: Future[Callable[[], None]] = Future()
        self._collecting = asyncio.Lock()
        self._last = Answer(503, b"")
        self._fresh_until_s = 0.0
        self.parts: list[Monitored] = []
        self.connections = HttpConnections(self._answer, names)

    def start(self) -> int:
        """Bind, serve, and return the port. Raise OSError if the address cannot be bound."""
        listener = self._reserve(*self._address)
        port: int = listener.getsockname()[1]
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="cometmq-http", daemon=True
        )
        self._thread.start()
        try:
            self._stops.result()
        except OSError as error:
            self._thread = None
            raise name_address(error, *self._address) from None
        self._tasks.keep(self._beat, name="beat", clock=self._clock)
        log.info("monitoring_served host=%s port=%d", self._address[0], port)
        return port

    async def close(self) -> None:
        """End the thread and its connections."""
        if self._thread is not None:
            self._stops.result()()
            await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                log.error("monitoring_not_ended within_s=%d", _CLOSE_TIMEOUT_S)

    async def _beat(self) -> None:
        while True:
            self._beat_ms = self._clock.monotonic_ms()
            await self._clock.sleep_ms(BEAT_MS)

    # ------------------------------------------------------------------- in the thread of the port

    def _run(self, listener: socket.socket) -> None:
        try:
            asyncio.run(self._serve(listener))
        except Exception as error:
            if self._stops.done():
                log.exception("monitoring_ended")
            else:
                self._stops.set_exception(error)
        finally:
            listener.close()

    async def _serve(self, listener: socket.socket) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(stop.set)

        server = await asyncio.start_server(
            self.connections.serve, sock=listener, limit=REQUEST_MAX_BYTES
        )
        self._stops.set_result(end)
        await stop.wait()
        server.close()

    async def _answer(self, path: str) -> Answer:
        if path == "/metrics":
            return await self._metrics()
        if path == "/healthz":
            return self.health()
        if path == "/readyz":
            return self.ready()
        return Answer(404, b"there are /metrics, /healthz and /readyz\n")

    @property
    def _is_starting(self) -> bool:
        return any(part.readiness().is_starting for part in self.parts)

    def health(self) -> Answer:
        """Return whether the process is alive: its event loop turns, or a store recovers."""
        late_ms = self._clock.monotonic_ms() - self._beat_ms
        if late_ms > HANGS_MS and not self._is_starting:
            return Answer(503, b"the event loop has not turned for %d s\n" % (late_ms // 1000))
        return Answer(200, b"alive\n")

    def ready(self) -> Answer:
        """Return whether all servers of the process are ready, with a line for each."""
        states = [part.readiness() for part in self.parts]
        is_ready = bool(states) and all(state.is_ready for state in states)
        lines = [f"{state.name}: {state.text}\n" for state in states] or ["nothing has started\n"]
        return Answer(200 if is_ready else 503, "".join(lines).encode())

    async def _metrics(self) -> Answer:
        loop = asyncio.get_running_loop()
        async with self._collecting:
            if loop.time() >= self._fresh_until_s:
                # Serve a failure again, too: each waiting request would otherwise wait as long.
                self._last = await self._fresh_metrics()
                self._fresh_until_s = loop.time() + FRESH_S
            return self._last

    async def _fresh_metrics(self) -> Answer:
        if self._is_starting:
            pieces = [
                piece
                for part in self.parts
                for series in part.start_series()
                for piece in text_pieces(series, part.shared_labels)
            ]
            return Answer(200, b"".join([*pieces, *process_text(self.connections)]), CONTENT_TYPE)
        collected: Future[bytes] = Future()
        self._servers_loop.call_soon_threadsafe(self._begin, collected)
        try:
            async with asyncio.timeout(COLLECT_TIMEOUT_S):
                return Answer(200, await asyncio.wrap_future(collected), CONTENT_TYPE)
        except TimeoutError:
            return Answer(503, b"the metrics were not collected in time\n")
        except Exception as error:
            log.error("metrics_failed error=%r", error)
            return Answer(500, b"the metrics could not be collected: see the log of the server\n")

    # ----------------------------------------------------------------- in the thread of the servers

    def _begin(self, collected: Future[bytes]) -> None:
        self._tasks.spawn(self._fulfil(collected), name="collect metrics")

    async def _fulfil(self, collected: Future[bytes]) -> None:
        try:
            text = await self.text()
        except BaseException as error:
            if collected.set_running_or_notify_cancel():
                collected.set_exception(error)
            raise
        if collected.set_running_or_notify_cancel():
            collected.set_result(text)

    async def text(self) -> bytes:
        """Return the metrics of all servers, collected in slices."""
        slices = Slices(self._clock, rest_ms=REST_MS)
        pieces: list[bytes] = []
        for part in self.parts:
            shared = part.shared_labels
            async for series in part.series(slices):
                for piece in text_pieces(series, shared):
                    pieces.append(piece)
                    await slices.pause()
        for piece in process_text(self.connections):
            pieces.append(piece)
            await slices.pause()
        return b"".join(pieces)
