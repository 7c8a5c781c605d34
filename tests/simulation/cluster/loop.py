"""An event loop whose time jumps, and the processes that share it.

Time stands still while callbacks are ready, and then jumps to the next timer. Callbacks run in the
order of their creation, so the order depends on the program alone. Every callback belongs to the
process in whose context it was created. After a process has ended, none of its callbacks runs, not
even to clean up, as after ``kill -9``.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, TypeVarTuple, cast

if TYPE_CHECKING:
    from collections import deque
    from concurrent.futures import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: The loop's time at its start.
START_US: Final = 1_000_000_000
#: More callbacks than this at one moment count as an endless loop.
_CALLBACKS_AT_ONCE: Final = 100_000
_PRUNE_TASKS: Final = 256
_CLOSE_TRIES: Final = 100

_bare: Final = object.__new__
_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Livelock(Exception):
    """Callbacks continue endlessly at one moment."""


class Idle(Exception):
    """No timer is left, so nothing more can happen."""


class Process:
    """One process on ``host``. Its callbacks run in ``context``; ``executor`` runs its threads'
    jobs."""

    __slots__ = ("alive", "context", "executor", "host", "name", "on_end", "tasks")

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.executor: Executor | None = None
        #: Called once, when the process has ended.
        self.on_end: list[Callable[[], None]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = Context()
        self.context.run(_process.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name} {'alive' if self.alive else 'ended'}>"

    def end(self) -> None:
        """End the process: none of its callbacks runs from now on."""
        if self.alive:
            self.alive = False
            for callback in self.on_end:
                callback()


def current_process() -> Process | None:
    """Return the process whose callback runs; None for the simulation itself."""
    return _process.get()


class Connector(Protocol):
    """Network that makes the loop's connections."""

    async def connect(
        self,
        process: Process,
        factory: Callable[[], asyncio.Protocol],
        address: tuple[str, int],
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect a process to an address. Raise OSError if that fails."""
        ...

    def serve(self, listener: object, factory: Callable[[], asyncio.Protocol]) -> object:
        """Accept connections; return an object that can be closed."""
        ...


class _Call(asyncio.Handle):
    """A handle without the fields that only a debugged loop needs.

    Handles are created without a constructor call, because a run creates ten thousand of them.
    """

    __slots__ = ()
    _callback: Callable[..., object]
    _context: Context

    def __init__(self) -> None:
        """Leave the fields to the code that creates the handle."""

    def __repr__(self) -> str:
        return f"<call of {self._callback}>"

    def cancel(self) -> None:
        self._callback, self._args = _nothing, ()

    def cancelled(self) -> bool:
        return self._callback is _nothing


class _Timer(_Call, asyncio.TimerHandle):
    """A handle with a time; after a cancellation it stays in the loop until that time."""

    __slots__ = ()
    _when: float


def _nothing() -> None:
    """Do nothing, in place of a cancelled callback."""


class SimLoop(asyncio.BaseEventLoop):
    """The event loop. ``network`` makes its connections. ``uncaught`` is called with a
    description of each exception that nothing caught in a living process."""

    _ready: deque[_Call]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.set_debug(False)
        self.now_us = START_US
        self.network: Connector | None = None
        self.uncaught: Callable[[str], None] = lambda problem: None
        self.callbacks = 0
        self._timers: list[tuple[int, int, _Timer | asyncio.Future[None]]] = []
        self._made = 0
        self._at_once = 0
        self.processes: list[Process] = []
        #: Tasks of the simulation itself.
        self._own_tasks: list[asyncio.Task[Any]] = []

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a callback, as in asyncio."""
        handle: _Call = _bare(_Call)
        handle._callback = callback
        handle._args = args
        handle._context = copy_context() if context is None else context
        self._ready.append(handle)
        return handle

    #: There are no other threads.
    call_soon_threadsafe = call_soon

    #: Every future calls this; bool() returns False at almost no cost.
    get_debug = bool

    # --- time ----------------------------------------------------------------------------------

    def time(self) -> float:
        """Return ``now_us`` in seconds."""
        return self.now_us / 1_000_000

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback after a delay, as in asyncio."""
        when_us = self.now_us + max(round(delay * 1_000_000), 0)
        return self.call_at_us(when_us, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a time, as in asyncio."""
        return self.call_at_us(round(when * 1_000_000), callback, *args, context=context)

    def call_at_us(
        self,
        when_us: int,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a value of ``now_us``; those of one moment run in order."""
        timer: _Timer = _bare(_Timer)
        timer._callback = callback
        timer._args = args
        timer._context = copy_context() if context is None else context
        timer._when = when_us / 1_000_000
        self._made = made = self._made + 1
        heappush(self._timers, (when_us, made, timer))
        return timer

    def moment(self, when_us: int) -> asyncio.Future[None]:
        """Return a future that is done at a value of ``now_us``; cheaper than a timer with a
        callback."""
        waiter: asyncio.Future[None] = asyncio.Future(loop=self)
        self._made = made = self._made + 1
        heappush(self._timers, (when_us, made, waiter))
        return waiter

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer stays until its time."""

    def _run_once(self) -> None:
        """Run callbacks, moment after moment, until the loop is stopped."""
        ready, take = self._ready, self._ready.popleft
        while True:
            if not ready and not self._stopping:
                self._jump()
            count = len(ready)
            self.callbacks += count
            self._at_once += count
            if self._at_once > _CALLBACKS_AT_ONCE:
                raise Livelock(f"{count} callbacks more at {self.now_us} us, the next: {ready[0]}")
            for _ in range(count):
                handle = take()
                context = handle._context
                process = context.get(_process)
                if process is None or process.alive:
                    try:
                        context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"exception": error, "handle": handle})
            if self._stopping:
                return

    def _jump(self) -> None:
        timers, ready = self._timers, self._ready
        while timers:
            when_us, _, timer = heappop(timers)
            if not timer.cancelled():
                break
        else:
            raise Idle(f"there is no timer after {self.now_us} us")
        if when_us > self.now_us:
            self.now_us = when_us
            self._at_once = 0
        while True:
            if isinstance(timer, _Timer):
                ready.append(timer)
            elif not timer.done():
                timer.set_result(None)
            if not timers or timers[0][0] > when_us:
                return
            timer = heappop(timers)[2]

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""

    # --- processes -----------------------------------------------------------------------------

    def launch(self, process: Process, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``main`` as the main task of a process."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.uncaught(f"{process.name} failed: {error!r}")

        if process not in self.processes:
            self.processes.append(process)
        task = self.create_task(main, name=process.name, context=process.context)
        task.add_done_callback(ended, context=process.context)
        return task

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """Create a task, as in asyncio. The loop keeps tasks alive, also those of ended
        processes."""
        task: asyncio.Task[Any] = asyncio.Task(
            coro, loop=self, name=cast("str | None", name), context=context
        )
        process = _process.get() if context is None else context.get(_process)
        tasks = self._own_tasks if process is None else process.tasks
        tasks.append(task)
        if not len(tasks) % _PRUNE_TASKS:
            tasks[:] = [task for task in tasks if not task.done()]
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a job in a thread of the process (threads.py), as in asyncio."""
        if executor is None:
            process = _process.get()
            assert process is not None
            executor = process.executor
            assert executor is not None, f"{process} has no threads"
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception of a callback, unless its process has ended.

        Exceptions that tasks of ended processes never deliver are ignored.
        """
        handle = context.get("handle")
        if handle is not None:
            process = handle._context.get(_process)
            if process is None or process.alive:
                self.uncaught(f"{process} raised {context.get('exception')!r}")

    def dispose(self) -> None:
        """End all processes, close their coroutines, then close the loop."""
        for process in self.processes:
            process.alive = False
        for tasks in (self._own_tasks, *(process.tasks for process in self.processes)):
            for task in tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
            tasks.clear()
        self._ready.clear()
        self._timers.clear()
        self.close()

    # --- connections ---------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        ssl: None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection, as in asyncio; the network has no TLS."""
        process = _process.get()
        assert process is not None
        assert self.network is not None
        return await self.network.connect(process, protocol_factory, (host, port))

    async def subprocess_exec(self, *arguments: Any, **options: Any) -> Any:
        """Raise OSError: there are no other programs, as on a machine without memory for one."""
        raise OSError(errno.ENOMEM, "cannot allocate memory")

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], *, sock: object, backlog: int
    ) -> object:
        """Start a server, as in asyncio."""
        assert self.network is not None
        return self.network.serve(sock, protocol_factory)


def _close(coro: Any) -> None:
    """Close a coroutine after the inner ones that it waits in, even if their clean-up waits
    again."""
    closed: list[Any] = []
    for _ in range(_CLOSE_TRIES):
        innermost = coro
        while hasattr(inner := getattr(innermost, "cr_await", None), "close") and (
            not any(inner is each for each in closed)
        ):
            innermost = inner
        try:
            innermost.close()
        except BaseException:  # it waits again, or needs the running loop
            continue
        if innermost is coro:
            return
        closed.append(innermost)
