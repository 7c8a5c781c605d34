"""A real name server and broker for tests: on free ports, with files of a few megabytes.

Three ways to run one, all with the same settings:

    running_cluster     in the caller's event loop
    cluster_in_thread   in a loop thread of its own, for tests that block
    ProcessCluster      in a child process, to be killed and started again

Settings are RocketMQ's, in either spelling: ``flush_disk_type="SYNC_FLUSH"`` or
``**{"flushDiskType": "SYNC_FLUSH"}``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.admin.node import VIP_DISTANCE, NodeProcess, lasting_port
from cometmq.cli.node import node_config, running_node
from cometmq.core.clock import SystemClock
from cometmq.core.settings import normalise
from cometmq.net.eventloop import loop_factory

#: Files small enough for hundreds of clusters in one test run.
SMALL_FILES: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(3_000 * 20),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}

START_TIMEOUT_S: Final = 30
STOP_TIMEOUT_S: Final = 30

Setting = str | int | float | bool
_Main = Callable[[], Coroutine[None, None, None]]
_Stops = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: addresses as ``host:port``, and the folder of its store."""

    namesrv: str
    broker: str
    store: Path


@asynccontextmanager
async def running_cluster(directory: Path, **settings: Setting) -> AsyncIterator[Cluster]:
    """Run a cluster in this event loop, with its store under ``directory``.

    Raise SettingsError for an unknown setting.
    """
    store = directory / "store"
    config = node_config(store, cluster_settings(settings))
    async with running_node(config, SystemClock()) as node:
        yield Cluster(node.namesrv, node.broker, store)


@contextmanager
def cluster_in_thread(directory: Path, **settings: Setting) -> Iterator[Cluster]:
    """Run a cluster in a thread with an event loop of its own.

    Raise the error of a failed start.
    """
    started: Future[Cluster] = Future()
    stops: _Stops = Future()

    async def run() -> None:
        stop = asyncio.Event()
        stops.set_result((asyncio.get_running_loop(), stop))
        async with running_cluster(directory, **settings) as cluster:
            started.set_result(cluster)
            await stop.wait()

    ended: Future[None] = Future()
    arguments = (run, started, ended)
    thread = threading.Thread(target=_run_thread, args=arguments, name="cometmq", daemon=True)
    thread.start()
    try:
        cluster = started.result(START_TIMEOUT_S)
    except BaseException:
        _end(thread, stops, ended)
        raise
    try:
        yield cluster
    finally:
        _end(thread, stops, ended)
    ended.result()


def _end(thread: threading.Thread, stops: _Stops, ended: Future[None]) -> None:
    """Stop the loop unless it has ended by itself, and wait for its thread."""
    with suppress(RuntimeError):  # the loop has ended by itself, and is closed
        loop, stop = stops.result(START_TIMEOUT_S)
        loop.call_soon_threadsafe(stop.set)
    ended.exception(STOP_TIMEOUT_S)
    thread.join(STOP_TIMEOUT_S)


class ProcessCluster(NodeProcess):
    """A cluster in a child process, on small files. Its ports and store stay across restarts."""

    def __init__(self, directory: Path, **settings: Setting) -> None:
        super().__init__(
            directory / "store",
            namesrv_port=lasting_port(),
            broker_port=lasting_port(VIP_DISTANCE),
            settings=cluster_settings(settings),
            log_path=directory / "cluster.log",
        )

    def restart(self) -> None:
        """Stop it as an administrator would (SIGTERM), and start it again."""
        self.terminate()
        self.start()

    def __enter__(self) -> ProcessCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def cluster_settings(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return ``settings`` as texts, with SMALL_FILES for the keys that they do not set."""
    named = {normalise(key) for key in settings}
    values = {key: value for key, value in SMALL_FILES.items() if normalise(key) not in named}
    for key, value in settings.items():
        values[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return values


def _run_thread(run: _Main, started: Future[Cluster], ended: Future[None]) -> None:
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run())
    except BaseException as error:
        if not started.done():
            started.set_exception(error)
        ended.set_exception(error)
    else:
        ended.set_result(None)
