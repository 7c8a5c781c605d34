"""The machines that brokers run on: a process at a time, a disk that outlives it, and what may
befall both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.replication.roles import SlavePart
from cometmq.broker.supervisor import Lives
from cometmq.core.errors import CometError
from cometmq.store.config import FlushDiskType
from cometmq.testing.faults.disk import Disk
from cometmq.testing.faults.files import Fault, MemoryFiles, Moment
from cometmq.testing.sim.clock import SimClock
from cometmq.testing.sim.copies import stored
from cometmq.testing.sim.loop import Process
from cometmq.testing.sim.threads import LoopThreads

if TYPE_CHECKING:
    from random import Random

    from cometmq.broker.app import Broker
    from cometmq.broker.config import BrokerConfig
    from cometmq.net.server import Reserve
    from cometmq.store.config import StoreConfig
    from cometmq.store.messagestore import MessageStore
    from cometmq.testing.sim.copies import Stored
    from cometmq.testing.sim.loop import SimLoop
    from cometmq.testing.sim.network import Listener, Network

#: How often it is looked whether something came true.
_LOOK_MS: Final = 100


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
        #: What kept a process from starting or stopping, though its disk was well.
        self.failures: list[BaseException] = []
        self.on_end: Callable[[], None] = lambda: None
        #: Called when a process has its store open, and before anybody can ask it anything.
        self.on_open: Callable[[], None] = lambda: None
        #: Whether it may have lost what it said to have: with ASYNC_FLUSH, in a power cut or with a
        #: disk that failed.
        self.may_lack = False
        #: What its log held when it may have lost some of it; None once that was looked at.
        self.before: list[Stored] | None = None
        self.config = config
        self.store_config = store_config
        self._faults: list[Fault] = []
        self._is_struck = False
        self._log_end = 0
        self._loop = loop
        self._network = network
        self._chance = chance
        self._process: Process | None = None
        self._starts = 0
        self._opened = False
        self._serving = False

    @property
    def broker(self) -> Broker | None:
        """The broker of the process that runs, or ran last; None before it was made."""
        return self._lives.broker if self._lives is not None else None

    @property
    def _store(self) -> MessageStore | None:
        return getattr(self.broker, "store", None) if self._opened else None

    @property
    def log_end(self) -> int:
        """Where the log ends, or ended when it was open last; 0 before that."""
        store = self._store
        return self._log_end if store is None else store.written_offset

    @property
    def is_up(self) -> bool:
        """Whether a process runs."""
        return self._process is not None and self._process.alive

    @property
    def is_serving(self) -> bool:
        """Whether the process has started to the end."""
        return self.is_up and self._serving

    @property
    def log_failed(self) -> bool:
        """Whether the log takes nothing any more, until a restart."""
        store = self._store
        return store is not None and store.log.failure is not None

    @property
    def problem(self) -> str:
        """What keeps it from copying its master, as it says itself; "" when nothing does."""
        part = self.broker.part if self.broker is not None and self.is_serving else None
        return str(part.slave.problem or "") if isinstance(part, SlavePart) else ""

    @property
    def is_synced(self) -> bool:
        """Whether what it has outlives a power cut."""
        return self.store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    # --- the process -----------------------------------------------------------------------------

    def start(self, *, ends_in: int = -1, moment: Moment = Moment.BEFORE) -> None:
        """Start a process; with ``ends_in`` it ends at that changing file operation."""
        assert not self.is_up
        self._starts += 1
        self._serving = self._opened = False
        self._is_struck = bool(self._faults) or self.disk.full
        process = self._process = Process(f"{self.name}-{self._starts}", self.host)
        threads = LoopThreads(self._loop, process, self._chance)
        files = self.files = _Files(self, self.disk, self.clock, self._chance, threads)
        files.faults = self._faults
        if ends_in >= 0:
            files.end_at(ends_in, moment)
        self._network.power_on(self.host)
        self._lives = None
        reserve = self._network.reserver(process)

        def reserve_and_see(host: str, port: int, *, exclusive: bool = False) -> Listener:
            listener = reserve(host, port, exclusive=exclusive)
            listener.on_serve = self._open
            return listener

        self._run(lambda: self._start(files, reserve_and_see))

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self.on_open()

    async def _start(self, files: MemoryFiles, reserve: Reserve) -> None:
        lives = self._lives = Lives(
            self.config, self.store_config, self.clock, files=files, reserve=reserve
        )
        lives.on_failed = lambda: self._failed(lives.failure)
        await lives.start()
        self._serving = True

    def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            try:
                await main()
            except Exception as error:
                self._failed(error)

        assert self._process is not None
        self._loop.launch(self._process, run())

    def _failed(self, error: BaseException | None) -> None:
        """The process cannot go on: it ends, and says why. A disk that fails is reason enough."""
        if self._is_struck and isinstance(error, CometError | OSError):
            self.died()
        elif error is not None:
            self.failures.append(error)

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
        """End the process: the kernel keeps what it wrote, except for what a failed sync gave
        up."""
        if self._process is not None and self._process.alive:
            self._look(loses=self._is_struck)
            self._end()
            self.disk.kill(self._chance)

    def died(self) -> None:
        """The process ended at a file operation, or by itself."""
        self.kill()
        self.on_end()

    # --- the machine -----------------------------------------------------------------------------

    def cut_power(self) -> None:
        """The machine goes down, and comes up at the next start with what its device kept."""
        self._look(loses=True)
        self._go_dark()
        self.disk.lose_power(self._chance)

    def go_dark(self) -> None:
        """Nobody hears of the machine any more; its disk keeps all that was written."""
        self._look(loses=self._is_struck)
        self._go_dark()
        self.disk.kill(self._chance)

    def destroy(self) -> None:
        """The machine goes down, and its disk is lost: the next one is empty."""
        self._go_dark()
        self.disk = Disk()
        self.before = None
        self._log_end = 0

    def _look(self, *, loses: bool) -> None:
        """Note what the log holds, when its end may cost some of it."""
        store = self._store
        if store is not None:
            self._log_end = store.written_offset
        if loses and self.before is None:
            self.before = stored(self)
            self.may_lack |= not self.is_synced

    def _go_dark(self) -> None:
        if self._process is not None and self._process.alive:
            self._network.power_off(self.host)
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self.files is not None
        self._serving = self._opened = False
        self.files.end()
        self._process.end()

    # --- its disk --------------------------------------------------------------------------------

    def fail(self, fault: Fault) -> None:
        """Operations of a kind fail from now on, so many times."""
        self._faults.append(fault)
        self._is_struck = True

    def fill_disk(self) -> None:
        """Nothing more finds room on the disk."""
        self.disk.full = self._is_struck = True

    def mend_disk(self) -> None:
        """The disk is well again, and has room."""
        self._faults.clear()
        self.disk.full = False


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


async def until(clock: SimClock, is_done: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait for a condition; gives whether it came true in time."""
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while not is_done():
        if clock.monotonic_ms() >= deadline_ms:
            return False
        await clock.sleep_ms(_LOOK_MS)
    return True
