"""Runs servers in this process: one event loop, stopped by SIGTERM or SIGINT.

A start either reaches its ready line, or ends with one line on standard error and exit code 2.
Garbage collection is off while modules are imported; from the ready line on net/collector.py runs
it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError
from cometmq.net.collector import Collector
from cometmq.net.eventloop import Watchdog, loop_factory
from cometmq.net.resources import keep_freed_memory, reserve_descriptors
from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

DONE: Final = 0
REFUSED: Final = 2

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Lifetime:
    """Lifetime of a command's servers: until a stop signal.

    A signal before :meth:`announce` cancels the start; one after it ends :meth:`wait`; a second one
    cancels all remaining work.
    """

    def __init__(self, task: asyncio.Task[Any], on_ready: Callable[[], None]) -> None:
        self._task = task
        self._on_ready = on_ready
        self._stop = asyncio.Event()
        self._ready = False

    def signalled(self) -> None:
        """Handle a signal to stop."""
        if not self._ready or self._stop.is_set():
            self._task.cancel()
        self._stop.set()

    def serve(self) -> None:
        """Mark the servers as running: garbage is collected, and a signal stops them in order."""
        if not self._ready:
            self._ready = True
            self._on_ready()

    def announce(self, line: str) -> None:
        """Print the ready line and mark the servers as running, unless they are already."""
        print(line, flush=True)
        self.serve()

    @property
    def is_ending(self) -> bool:
        """True if the servers have to stop."""
        return self._stop.is_set()

    def end(self) -> None:
        """Stop the servers, because they cannot continue."""
        self._stop.set()

    async def wait(self) -> None:
        """Wait until the servers have to stop."""
        await self._stop.wait()


#: Starts the servers, announces them, waits for the end, and stops them.
Main = Callable[[Lifetime], Coroutine[Any, Any, None]]


def run(command: str, main: Main, *, watch_input: bool = False) -> int:
    """Run ``main`` until a stop signal; return the exit code of the process.

    With ``watch_input`` the end of standard input counts as a stop signal.
    """
    gc.disable()
    keep_freed_memory()
    reserve_descriptors()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_until_signal(main, watch_input=watch_input))
    except CometError as error:
        return refuse(command, str(error))
    except OSError as error:
        return refuse(command, explain(error))
    finally:
        gc.enable()
    return DONE


def refuse(command: str, *problems: str) -> int:
    """Print the reasons for refusing the command and return the exit code.

    Each is one line on standard error.
    """
    for problem in problems:
        line = " ".join(problem.split())
        print(f"cometmq {command}: {line}", file=sys.stderr, flush=True)
    return REFUSED


def explain(error: OSError) -> str:
    """Return the meaning of an operating system error at the start, and how to fix it."""
    named = f"{error.filename}: " if error.filename else ""
    if error.errno == errno.EADDRINUSE:
        return (
            f"{error}: another process listens there; stop it, or choose another port "
            "(0: a free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{error}: this machine has no such address; choose another --bind"
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{named}{error.strerror or error}: choose a directory or port that this user may use"
        )
    if error.errno == errno.ENOSPC:
        return f"{named}no space left on the device: free some, or choose another --store"
    return f"{named}{error.strerror or error}"


def on_signals(callback: Callable[[], object]) -> None:
    """Call ``callback`` when the process receives a stop signal, instead of ending the process."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, callback)


def on_end_of_input(callback: Callable[[], object]) -> None:
    """Call ``callback`` when standard input ends.

    The process that held its other end is gone then.
    """
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            callback()

    loop.add_reader(descriptor, readable)


async def _until_signal(main: Main, *, watch_input: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    tasks = Tasks()
    collector = Collector(SystemClock(), Watchdog())
    lifetime = Lifetime(task, lambda: collector.start(tasks))
    on_signals(lifetime.signalled)
    if watch_input:
        on_end_of_input(lifetime.signalled)
    try:
        await main(lifetime)
    except asyncio.CancelledError:
        log.warning("stopped before its start or stop was complete")
    finally:
        collector.stop()
        await tasks.close()
