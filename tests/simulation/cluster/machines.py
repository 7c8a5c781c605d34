"""Machines of brokers: one process at a time, a disk that outlives it, and the faults of both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.replication.roles import SlavePart
from cometmq.broker.supervisor import Supervisor
from cometmq.core.errors import CometError
from cometmq.store.config import FlushDiskType
from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.copies import stored
from tests.simulation.cluster.loop import Process
from tests.simulation.cluster.threads import LoopThreads
from tests.simulation.faults.disk import Disk
from tests.simulation.faults.files import Fault, MemoryFiles, Moment

if TYPE_CHECKING:
    from random import Random

    from cometmq.broker.app import Broker
    from cometmq.broker.config import BrokerConfig
    from cometmq.net.server import Reserve
    from cometmq.store.config import StoreConfig
    from cometmq.store.messagestore import MessageStore
    from tests.simulation.cluster.copies import Stored
    from tests.simulation.cluster.loop import SimLoop
    from tests.simulation.cluster.network import Listener, Network

#: Interval at which a condition is checked.
_LOOK_MS: Final = 100


class BrokerMachine:
    """Runs a broker on a disk of its own.

    Its sleeps end at multiples of ``grain_ms``, because tasks that run 20 times a second find
    nothing to do at most times. ``on_end`` is called when a process ended by itself.
    """

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
        self._lives: Supervisor | None = None
        self.files: MemoryFiles | None = None
        #: Errors that kept a process from starting or stopping although its disk was well.
        self.failures: list[BaseException] = []
        self.on_end: Callable[[], None] = lambda: None
        #: Called when a process has its store open, before it answers any request.
        self.on_open: Callable[[], None] = lambda: None
        #: True if it may have lost acknowledged records: with ASYNC_FLUSH, in a power cut or on a
        #: disk that failed.
        self.may_lack = False
        #: Content of its log when it may have lost some of it; None once that was checked.
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
        """The broker of the current or the last process; None before it was created."""
        return self._lives.broker if self._lives is not None else None

    @property
    def _store(self) -> MessageStore | None:
        return getattr(self.broker, "store", None) if self._opened else None

    @property
    def log_end(self) -> int:
        """End of the log, now or when it was last open; 0 before that."""
        store = self._store
        return self._log_end if store is None else store.written_offset

    def stored(self, start: int = 0) -> list[Stored]:
        """Return all records from ``start`` on in the log, also if no process runs."""
        return stored(self.disk, self.log_end, start)

    @property
    def is_up(self) -> bool:
        """True if a process runs."""
        return self._process is not None and self._process.alive

    @property
    def is_serving(self) -> bool:
        """True if the process has finished its start."""
        return self.is_up and self._serving

    @property
    def log_failed(self) -> bool:
        """True if the log refuses appends until a restart."""
        store = self._store
        return store is not None and store.log.failure is not None

    @property
    def problem(self) -> str:
        """The reason, as the broker reports it, why it does not copy its master; "" if there is
        none."""
        broker = self.broker
        part = broker.replication.part if broker is not None and self.is_serving else None
        return str(part.slave.problem or "") if isinstance(part, SlavePart) else ""

    @property
    def is_synced(self) -> bool:
        """True if its log survives a power cut."""
        return self.store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    # --- the process -----------------------------------------------------------------------------

    def start(self, *, ends_in: int = -1, moment: Moment = Moment.BEFORE) -> None:
        """Start a process; with ``ends_in`` it ends at the changing file operation of that
        number."""
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
        lives = self._lives = Supervisor(
            self.config,
            self.store_config,
            self.clock,
            files=files,
            reserve=reserve,
            on_failed=lambda: self._failed(lives.failure),
        )
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
        """End the process after an error, if a disk fault explains it; otherwise record a
        failure."""
        if self._is_struck and isinstance(error, CometError | OSError):
            self.died()
        elif error is not None:
            self.failures.append(error)

    def stop(self) -> None:
        """Ask the process to stop cleanly; it ends a while later."""
        lives = self._lives
        assert lives is not None
        self._serving = False
        self._run(lambda: self._stop(lives))

    async def _stop(self, lives: Supervisor) -> None:
        await lives.stop()
        self.kill()

    def end_soon(self, steps: int, moment: Moment) -> None:
        """End the process ``steps`` changing file operations from now."""
        assert self.files is not None
        self.files.end_at(self.files.steps + steps, moment)

    def kill(self) -> None:
        """End the process; the kernel keeps its writes, except for those that a failed sync gave
        up."""
        if self._process is not None and self._process.alive:
            self._look(loses=self._is_struck)
            self._end()
            self.disk.kill(self._chance)

    def died(self) -> None:
        """Note that the process ended at a file operation, or by itself."""
        self.kill()
        self.on_end()

    # --- the machine -----------------------------------------------------------------------------

    def cut_power(self) -> None:
        """Cut the power; the next start finds the bytes that the device kept."""
        self._look(loses=True)
        self._go_dark()
        self.disk.lose_power(self._chance)

    def go_dark(self) -> None:
        """Take the machine off the network and end its process; its disk keeps everything that
        was written."""
        self._look(loses=self._is_struck)
        self._go_dark()
        self.disk.kill(self._chance)

    def destroy(self) -> None:
        """Cut the power and lose the disk; the next one is empty."""
        self._go_dark()
        self.disk = Disk()
        self.before = None
        self._log_end = 0

    def _look(self, *, loses: bool) -> None:
        """Record the content of the log if the end of its process may lose some of it."""
        store = self._store
        if store is not None:
            self._log_end = store.written_offset
        if loses and self.before is None:
            self.before = self.stored()
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
        """Make operations of a kind fail from now on, ``fault.times`` times."""
        self._faults.append(fault)
        self._is_struck = True

    def fill_disk(self) -> None:
        """Fill the disk."""
        self.disk.full = self._is_struck = True

    def mend_disk(self) -> None:
        """Repair the disk, and free its room."""
        self._faults.clear()
        self.disk.full = False


class _Files(MemoryFiles):
    """File operations that notify the machine when its process ends at one of them."""

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
    """Wait for a condition; return whether it became true in time."""
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while not is_done():
        if clock.monotonic_ms() >= deadline_ms:
            return False
        await clock.sleep_ms(_LOOK_MS)
    return True
