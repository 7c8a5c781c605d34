"""The machines that servers run on: a process at a time, a disk that outlives it, and what may
befall both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.lives import Lives
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NamesrvConfig
from cometmq.store.config import FlushDiskType
from cometmq.testing.faults.disk import Disk
from cometmq.testing.faults.files import MemoryFiles, Moment
from cometmq.testing.sim.clock import SimClock
from cometmq.testing.sim.loop import Process
from cometmq.testing.sim.threads import LoopThreads

if TYPE_CHECKING:
    from random import Random

    from cometmq.broker.app import Broker
    from cometmq.broker.config import BrokerConfig
    from cometmq.net.server import Reserve
    from cometmq.store.config import StoreConfig
    from cometmq.testing.sim.loop import SimLoop
    from cometmq.testing.sim.network import Network

_NO_FILE: Final = "/nowhere/kvConfig.json"


class NameServerMachine:
    """Runs a name server; it keeps nothing on a disk."""

    def __init__(self, loop: SimLoop, network: Network, host: str, port: int) -> None:
        self.name = "namesrv"
        self.host = host
        self.address = f"{host}:{port}"
        self._loop = loop
        self._network = network
        self._config = NamesrvConfig(bind_address=host, listen_port=port, kv_config_path=_NO_FILE)
        self._process: Process | None = None
        self._starts = 0

    @property
    def is_up(self) -> bool:
        """Whether a process runs."""
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Start a process."""
        self._starts += 1
        process = self._process = Process(f"namesrv-{self._starts}", self.host)
        clock = SimClock(self._loop)
        reserve = self._network.reserver(process)

        async def main() -> None:
            await NameServer(self._config, clock, reserve=reserve).start()

        self._loop.launch(process, main())

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()


class BrokerMachine:
    """Runs a broker on a disk of its own. Its sleeps end at multiples of ``grain_ms``: work that
    comes 20 times a second finds nothing to do in most simulated moments. ``on_end`` is called when
    a process ended by itself."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        chance: Random,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        name: str = "broker",
        grain_ms: int = 1,
    ) -> None:
        self.name = name
        self.host = config.bind_address
        self.disk = Disk()
        self.clock = SimClock(loop, grain_ms=grain_ms)
        self._lives: Lives | None = None
        self.files: MemoryFiles | None = None
        #: What kept a process from starting or stopping.
        self.failures: list[BaseException] = []
        self.on_end: Callable[[], None] = lambda: None
        #: Called when a process has started to the end.
        self.on_start: Callable[[], None] = lambda: None
        #: Whether it may have lost what it said to have: in a power cut, with ASYNC_FLUSH.
        self.may_lack = False
        self.config = config
        self.store_config = store_config
        self._loop = loop
        self._network = network
        self._chance = chance
        self._process: Process | None = None
        self._starts = 0
        self._serving = False

    @property
    def broker(self) -> Broker | None:
        """The broker of the process that runs, or ran last; None before it was made."""
        return self._lives.broker if self._lives is not None else None

    @property
    def log_end(self) -> int:
        """Where the log ends, of the process that runs or ran last; 0 before it was made."""
        return 0 if self.broker is None else self.broker.store.written_offset

    @property
    def is_up(self) -> bool:
        """Whether a process runs."""
        return self._process is not None and self._process.alive

    @property
    def is_serving(self) -> bool:
        """Whether the process has started to the end."""
        return self.is_up and self._serving

    def start(self, *, ends_in: int = -1, moment: Moment = Moment.BEFORE) -> None:
        """Start a process; with ``ends_in`` it ends at that changing file operation."""
        assert not self.is_up
        self._starts += 1
        self._serving = False
        process = self._process = Process(f"{self.name}-{self._starts}", self.host)
        threads = LoopThreads(self._loop, process, self._chance)
        files = self.files = _Files(self, self.disk, self.clock, self._chance, threads)
        if ends_in >= 0:
            files.end_at(ends_in, moment)
        self._network.power_on(self.host)
        self._lives = None
        reserve = self._network.reserver(process)
        self._run(lambda: self._start(files, reserve))

    async def _start(self, files: MemoryFiles, reserve: Reserve) -> None:
        lives = self._lives = Lives(
            self.config, self.store_config, self.clock, files=files, reserve=reserve
        )
        lives.on_failed = lambda: self.failures.extend(_failure_of(lives))
        await lives.start()
        self._serving = True
        self.on_start()

    def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            try:
                await main()
            except Exception as error:
                self.failures.append(error)

        assert self._process is not None
        self._loop.launch(self._process, run())

    def stop(self) -> None:
        """Ask the process to stop in order; it ends a while later."""
        lives = self._lives
        assert lives is not None
        self._serving = False
        self._run(lambda: self._stop(lives))

    async def _stop(self, lives: Lives) -> None:
        await lives.stop()
        self.kill()

    def end_soon(self, steps: int, moment: Moment) -> None:
        """The process ends at that changing file operation from now."""
        assert self.files is not None
        self.files.end_at(self.files.steps + steps, moment)

    def kill(self) -> None:
        """End the process: the kernel keeps what it wrote."""
        if self._process is not None and self._process.alive:
            self._end()
            self.disk.kill(self._chance)

    def cut_power(self) -> None:
        """The machine goes down, and comes up at the next start with what its device kept."""
        self._go_dark()
        self.disk.lose_power(self._chance)
        if self.store_config.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
            self.may_lack = True

    def go_dark(self) -> None:
        """Nobody hears of the machine any more; its disk keeps all that was written."""
        self._go_dark()
        self.disk.kill(self._chance)

    def destroy(self) -> None:
        """The machine goes down, and its disk is lost: the next one is empty."""
        self._go_dark()
        self.disk = Disk()

    def _go_dark(self) -> None:
        if self._process is not None and self._process.alive:
            self._network.power_off(self.host)
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self.files is not None
        self._serving = False
        self.files.end()
        self._process.end()

    def died(self) -> None:
        """The process ended at a file operation."""
        self.kill()
        self.on_end()


class _Files(MemoryFiles):
    """Tells its machine when the process is to end at one of its operations."""

    def __init__(
        self,
        machine: BrokerMachine,
        disk: Disk,
        clock: SimClock,
        chance: Random,
        threads: LoopThreads,
    ) -> None:
        super().__init__(disk, clock, chance, threads=threads)
        self._machine = machine

    def _die(self, operation: str, path: str) -> None:
        self._machine.died()
        super()._die(operation, path)


def _failure_of(lives: Lives) -> list[BaseException]:
    return [] if lives.failure is None else [lives.failure]


async def until(clock: SimClock, is_done: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait for a condition; gives whether it came true in time."""
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while not is_done():
        if clock.monotonic_ms() >= deadline_ms:
            return False
        await clock.sleep_ms(50)
    return True
