"""Runs servers in this process: one event loop, stopped by SIGTERM or SIGINT.

A start either reaches its ready line, or ends with a line for each reason on standard error and
exit code 2. Garbage collection is off during the start, while modules are imported; from the ready
line on, net/collector.py runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import logging
import os
import pwd
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.cli.systemd import READY, STOPPING, notify
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError, SettingsError
from cometmq.net.collector import Collector
from cometmq.net.eventloop import Watchdog, loop_factory
from cometmq.net.resources import keep_freed_memory, reserve_descriptors
from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

DONE: Final = 0
REFUSED: Final = 2

#: State of a listening socket in /proc/net/tcp.
_LISTENS: Final = "0A"
_COMMAND_CHARACTERS: Final = 60

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Lifetime:
    """Lifetime of a command's servers, from their start to a stop signal.

    A signal before :meth:`serve` cancels the start. A signal after it ends :meth:`wait`. A second
    signal cancels the wait that the stop is in; acknowledged data is in the files even then.
    systemd is notified when the servers run, and when they begin to stop.
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
        self.end()

    def serve(self) -> None:
        """Mark the servers as running: from now on, a signal stops them in order.

        Garbage collection starts, too.
        """
        if not self._ready:
            self._ready = True
            self._on_ready()
            notify(READY)

    def announce(self, line: str) -> None:
        """Print the ready line and mark the servers as running, unless they are already."""
        print(line, flush=True)
        self.serve()

    @property
    def is_ending(self) -> bool:
        """True if the servers have to stop."""
        return self._stop.is_set()

    def end(self) -> None:
        """Stop the servers."""
        if not self._stop.is_set():
            notify(STOPPING)
        self._stop.set()

    async def wait(self) -> None:
        """Wait until the servers have to stop."""
        await self._stop.wait()


#: Starts the servers, announces them, waits for the end, and stops them.
Main = Callable[[Lifetime], Coroutine[Any, Any, None]]


def run(
    command: str,
    main: Main,
    *,
    watch_input: bool = False,
    ports: Mapping[int, str] | None = None,
    on_hangup: Callable[[], None] | None = None,
) -> int:
    """Run ``main`` until a stop signal; return the exit code of the process.

    With ``watch_input`` the end of standard input counts as a stop signal. ``ports`` has the
    setting of each port of the servers, for error messages. ``on_hangup`` is called on SIGHUP,
    which otherwise ends the process. Afterwards the process ignores these signals, because it is
    about to exit.
    """
    gc.disable()
    keep_freed_memory()
    reserve_descriptors()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_until_signal(main, watch_input=watch_input, on_hangup=on_hangup))
    except CometError as error:
        return refuse(command, str(error))
    except OSError as error:
        return refuse(command, explain(error, ports))
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


def explain(error: OSError, ports: Mapping[int, str] | None = None) -> str:
    """Return the meaning of an operating system error at the start, and how to fix it.

    ``ports`` has the setting of each port of the server.
    """
    named = f"{error.filename}: " if error.filename else ""
    if error.errno == errno.EADDRINUSE:
        port = _port_of(error)
        setting = (ports or {}).get(port, "")
        return (
            f"{named}address already in use {listening_process(port)}: stop it, or choose another "
            f"port{f' ({setting})' if setting else ' (0: a free one)'}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{named}this machine has no such address: choose another --bind (bindAddress)"
    if error.errno in (errno.EACCES, errno.EPERM):
        whose = _whose(error.filename)
        return (
            f"{named}{error.strerror or error}{whose}: choose a directory or port that this user "
            "may use"
        )
    if error.errno == errno.ENOSPC:
        return f"{named}no space left on the device: free some, or choose another --store"
    return f"{named}{error.strerror or error}"


def _whose(path: object) -> str:
    """Return the owner of a path, in brackets, if that is another user; otherwise ""."""
    user, found = os.geteuid(), Path(str(path or ""))
    if not found.is_absolute():  # the error may be about an address, not a file
        return ""
    for place in (found, *found.parents):
        with contextlib.suppress(OSError):
            owner = place.stat().st_uid
            if owner == user:
                return ""
            return f" ({place} belongs to {_user(owner)}, this process runs as {_user(user)})"
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _port_of(error: OSError) -> int:
    port = str(error.filename or "").rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def listening_process(port: int) -> str:
    """Return "by process PID (COMMAND)" for the process that listens on a TCP port.

    Linux shows the sockets of processes of other users only to root.
    """
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
            inodes |= {found for line in lines if (found := _listening_inode(line, port))}
    if port and inodes:
        for process in Path("/proc").glob("[0-9]*"):
            if _has_socket(process, inodes):
                return f"by process {process.name} ({_command_of(process)})"
    return "by a process that this user cannot see"


def _listening_inode(line: str, port: int) -> str:
    """Return the inode of the socket of a line, if it listens on ``port``; "" otherwise."""
    words = line.split()
    if len(words) < 10 or words[3] != _LISTENS or int(words[1].rpartition(":")[2], 16) != port:
        return ""
    return words[9]


def _has_socket(process: Path, inodes: Collection[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor).removeprefix("socket:[").rstrip("]") in inodes:
                    return True
    return False


def _command_of(process: Path) -> str:
    """Return the program of a process and its words before the first option, or the Java class.

    Other arguments may hold secrets.
    """
    with contextlib.suppress(OSError):
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        plain = itertools.takewhile(lambda word: word[:1] not in ("-", ""), words[1:])
        classes = (word for word in words if word.startswith("org.apache.rocketmq."))
        shown = [os.path.basename(word) for word in (words[0], *plain, *classes)]
        return " ".join(shown)[:_COMMAND_CHARACTERS]
    return "unknown command"


@contextlib.contextmanager
def stop_signals(callback: Callable[[], object]) -> Iterator[None]:
    """Call ``callback`` when the process receives a stop signal, instead of ending the process.

    Afterwards the process ignores these signals, because it is about to exit.
    """
    on_signals(callback)
    try:
        yield
    finally:
        _ignore(STOP_SIGNALS)


def on_signals(callback: Callable[[], object]) -> None:
    """Call ``callback`` when the process receives a stop signal, until the event loop ends."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, callback)


def on_end_of_input(callback: Callable[[], object]) -> None:
    """Call ``callback`` when standard input ends.

    The process at its other end has ended then. Raises SettingsError if standard input is a file,
    which has no other end.
    """
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            callback()

    try:
        loop.add_reader(descriptor, readable)
    except PermissionError:
        raise SettingsError(
            "--stop-with-input", "standard input must be a pipe or a terminal, not a file"
        ) from None


async def _until_signal(
    main: Main, *, watch_input: bool, on_hangup: Callable[[], None] | None
) -> None:
    task = asyncio.current_task()
    assert task is not None
    tasks = Tasks()
    collector = Collector(SystemClock(), Watchdog())
    lifetime = Lifetime(task, lambda: collector.start(tasks))
    on_signals(lifetime.signalled)
    if on_hangup is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    if watch_input:
        on_end_of_input(lifetime.signalled)
    try:
        await main(lifetime)
    except asyncio.CancelledError:
        log.warning("stopped before its start or stop was complete")
    finally:
        collector.stop()
        _ignore(STOP_SIGNALS if on_hangup is None else (*STOP_SIGNALS, signal.SIGHUP))
        await tasks.close()


def _ignore(numbers: Collection[signal.Signals]) -> None:
    """Ignore signals from now on, also while the interpreter ends.

    The end of the loop, or of the interpreter, restores the default action of a signal that has a
    handler. A signal would then kill a process that has stopped in order, and its exit code would
    report a failure. Blocking the signals is not enough: a thread blocks them for itself only, and
    threads of uvloop live until the exit. Nothing that follows needs the signals: the children have
    ended, and only error messages and the exit are left.
    """
    loop = asyncio.get_running_loop()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)  # this restores the default action, so it comes first
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
