"""A simulated network: hosts, listeners, and connections that delay, split, stall and break.

A connection has two ends, each a transport of a real protocol object. Written bytes arrive in
order, in pieces, each after a delay. Two hosts may be cut off from each other, in one direction or
both: bytes under way wait then, as TCP resends them. The kernel closes the sockets of a process
that ends, and the other side learns of it at once. A host that loses power sends nothing; the other
side learns of it when the host is up again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.cluster.loop import Process, SimLoop
    from tests.simulation.cluster.trace import Trace

#: Pause before a connection attempt is repeated, or a reset is sent again.
_AGAIN_US: Final = 1_000_000
_FIRST_PORT: Final = 40_000
_WRITE_HIGH_BYTES: Final = 64 * 1024

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Weather:
    """Properties of a network: each piece has one of ``delays_us``; ``split`` is the probability
    that a write is split."""

    delays_us: tuple[int, ...] = (100, 150, 200, 300)
    split: float = 0.0


class Listener(socket.socket):
    """A reserved address. It is no socket of the machine, and never gets a descriptor."""

    def __init__(self, network: Network, process: Process, address: Address) -> None:
        # The constructor of the base class is not called, because it would open a socket.
        self._network = network
        self.process = process
        self.address = address
        self.factory: Callable[[], asyncio.Protocol] | None = None
        #: Called before connections are accepted.
        self.on_serve: Callable[[], None] = lambda: None

    def getsockname(self) -> Address:
        return self.address

    def listen(self, backlog: int = 0, /) -> None:
        """Do nothing: the address is listened on once it is served."""

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.factory = None
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]


class End(asyncio.Transport):
    """One end of a connection, of ``process``; ``here`` and ``there`` are the addresses of both
    ends."""

    def __init__(
        self, network: Network, process: Process, here: Address, there: Address, number: int
    ) -> None:
        super().__init__({"sockname": here, "peername": there})
        self.process = process
        self.host = here[0]
        self.number = number
        self.other: End = self
        #: True after this side closed it; ``gone`` once the protocol was notified, or its process
        #: ended.
        self.closing = False
        self.gone = False
        #: Written pieces that have not arrived; None is the end of the stream. ``stalled`` is the
        #: number of them that were due while the network was cut.
        self.pipe: deque[bytes | None] = deque()
        self.stalled = 0
        self.arrives_us = 0
        self._network = network
        self._protocol: asyncio.Protocol | None = None
        self._feed: Callable[[bytes], object] = _nobody
        self._unread: deque[bytes | None] = deque()
        self._reading = False
        self._untaken_bytes = 0
        self._high_bytes = _WRITE_HIGH_BYTES
        self._full = False

    def __repr__(self) -> str:
        return f"<End {self.number} of {self.process.name}>"

    # --- asyncio.Transport -----------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.closing or not data or not self.process.alive:
            return
        self._untaken_bytes += len(data)
        self._network.carry(self, bytes(data))
        if self._untaken_bytes > self._high_bytes and not self._full and self._protocol is not None:
            self._full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self.closing or not self.process.alive:
            return
        self.closing = True
        self._network.carry(self, None)
        self._network.loop.call_soon(self._lost, None, context=self.process.context)

    def abort(self) -> None:
        if self.gone or not self.process.alive:
            return
        self.closing = True
        self.pipe.clear()
        self._network.reset(self.other)
        self._network.loop.call_soon(self._lost, None, context=self.process.context)

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._network.loop.call_soon(self._drain, context=self.process.context)

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _WRITE_HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._untaken_bytes

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # --- calls of the network --------------------------------------------------------------------

    def attach(self, protocol: asyncio.Protocol) -> None:
        """Open it for a protocol, in a callback of its process."""
        self._protocol = protocol
        is_plain = isinstance(protocol, asyncio.Protocol)
        self._feed = protocol.data_received if is_plain else partial(_feed, protocol)
        protocol.connection_made(self)
        self.resume_reading()

    def take(self, piece: bytes | None) -> None:
        """Receive bytes, or the end of the stream."""
        if self.gone:
            return
        if self._reading and not self._unread:
            self._give(piece)
        else:
            self._unread.append(piece)

    def break_off(self) -> None:
        """Break the connection by a reset; unread bytes are lost."""
        if not self.gone:
            self.closing = True
            self._unread.clear()
            self._lost(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _drain(self) -> None:
        unread = self._unread
        while unread and self._reading and not self.gone:
            self._give(unread.popleft())

    def _give(self, piece: bytes | None) -> None:
        if piece is None:
            protocol = self._protocol
            assert protocol is not None
            if not protocol.eof_received():
                self.close()
            return
        self.other._taken(len(piece))
        if not self.closing:
            self._network.trace.carried(self.number, piece)
            self._feed(piece)

    def _taken(self, size_bytes: int) -> None:
        self._untaken_bytes -= size_bytes
        if self._full and self._untaken_bytes <= self._high_bytes // 4:
            self._full = False
            self._network.loop.call_soon(self._resume_writing, context=self.process.context)

    def _resume_writing(self) -> None:
        if not self.gone and self._protocol is not None:
            self._protocol.resume_writing()

    def _lost(self, error: Exception | None) -> None:
        if not self.gone:
            self.gone = True
            self._network.forget(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)


class Network:
    """All hosts. ``weather`` may change at any time."""

    def __init__(self, loop: SimLoop, chance: Random, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.weather = Weather()
        self.listeners: dict[Address, Listener] = {}
        self.connections = 0
        self._chance = chance
        self._ends: dict[End, None] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        loop.network = self

    # --- for processes ---------------------------------------------------------------------------

    def reserver(self, process: Process) -> Callable[..., Listener]:
        """Return a process's function for reserving addresses; see ``reserve`` in net/server.py."""

        def reserve(host: str, port: int, *, exclusive: bool = False) -> Listener:
            if not process.alive or (host, port) in self.listeners:
                raise OSError(errno.EADDRINUSE, "address already in use")
            listener = self.listeners[host, port] = Listener(self, process, (host, port))
            return listener

        process.on_end.append(lambda: self._ended(process))
        return reserve

    def join(self, process: Process) -> None:
        """Add a process that only connects."""
        process.on_end.append(lambda: self._ended(process))

    def serve(self, listener: object, factory: Callable[[], asyncio.Protocol]) -> Listener:
        """Accept connections; return an object that can be closed."""
        assert isinstance(listener, Listener)
        listener.on_serve()
        listener.factory = factory
        return listener

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.Protocol], address: Address
    ) -> tuple[End, asyncio.Protocol]:
        """Connect to an address; wait as long as the host does not answer. Raise OSError if
        refused."""
        done: asyncio.Future[tuple[End, asyncio.Protocol]] = self.loop.create_future()
        self._later(self._knock, process, factory, address, done)
        return await done

    def _knock(
        self,
        process: Process,
        factory: Callable[[], asyncio.Protocol],
        address: Address,
        done: asyncio.Future[tuple[End, asyncio.Protocol]],
    ) -> None:
        if done.done() or not process.alive:
            return
        host = address[0]
        if host in self._down or not self._hear_each_other(process.host, host):
            after_us = self.loop.now_us + _AGAIN_US
            self.loop.call_at_us(after_us, self._knock, process, factory, address, done)
            return
        listener = self.listeners.get(address)
        if listener is None or listener.factory is None:
            self._later(_refuse, done, context=process.context)
            return
        self.connections = number = self.connections + 1
        here = (process.host, _FIRST_PORT + number)
        near = End(self, process, here, address, 2 * number)
        far = End(self, listener.process, address, here, 2 * number + 1)
        near.other, far.other = far, near
        self._ends[near] = self._ends[far] = None
        self.loop.call_soon(_accept, far, listener, context=listener.process.context)
        self._later(_open, near, factory, done, context=process.context)

    # --- bytes -----------------------------------------------------------------------------------

    def carry(self, end: End, data: bytes | None) -> None:
        """Carry bytes, or the end of the stream, to the other end."""
        pipe = end.pipe
        if data is None or self._chance.random() >= self.weather.split or len(data) < 2:
            pipe.append(data)
        else:
            at = self._chance.randrange(1, len(data))
            pipe.append(data[:at])
            self._schedule(end)
            pipe.append(data[at:])
        self._schedule(end)

    def _schedule(self, end: End) -> None:
        """Schedule the arrival of one more piece, after those before it."""
        loop, delays_us = self.loop, self.weather.delays_us
        when_us = loop.now_us + delays_us[int(self._chance.random() * len(delays_us))]
        if when_us < end.arrives_us:
            when_us = end.arrives_us
        end.arrives_us = when_us
        loop.call_at_us(when_us, self._arrive, end, context=end.other.process.context)

    def _arrive(self, end: End) -> None:
        if not end.pipe:
            return  # lost with its host, or by a reset
        other = end.other
        if self._cuts and self._is_cut(end.host, other.host):
            end.stalled += 1
        else:
            other.take(end.pipe.popleft())

    def reset(self, end: End) -> None:
        """Notify an end, after a delay, that its connection is broken."""
        self._later(self._reset, end, context=end.process.context)

    def _reset(self, end: End) -> None:
        if self._is_cut(end.other.host, end.host):
            after_us = self.loop.now_us + _AGAIN_US
            self.loop.call_at_us(after_us, self._reset, end, context=end.process.context)
        else:
            end.break_off()

    def forget(self, end: End) -> None:
        """Remove an end."""
        self._ends.pop(end, None)

    def _later(self, callback: Callable[..., object], *args: Any, context: Any = None) -> None:
        when_us = self.loop.now_us + self._delay_us()
        self.loop.call_at_us(when_us, callback, *args, context=context)

    def _delay_us(self) -> int:
        delays_us = self.weather.delays_us
        return delays_us[int(self._chance.random() * len(delays_us))]

    # --- faults ----------------------------------------------------------------------------------

    def _is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def _hear_each_other(self, one: str, two: str) -> bool:
        return not self._is_cut(one, two) and not self._is_cut(two, one)

    def cut(self, source: str, target: str) -> None:
        """Stop all bytes from ``source`` to ``target``."""
        self._cuts.add((source, target))

    def heal(self) -> None:
        """Repair all cuts."""
        self._cuts.clear()
        for end in list(self._ends):
            self._resend(end)
            if end.other not in self._ends:  # its process has ended, but its kernel still sends
                self._resend(end.other)

    def _resend(self, end: End) -> None:
        stalled, end.stalled = end.stalled, 0
        for _ in range(stalled):
            self._schedule(end)

    def break_connections(self, share: float) -> int:
        """Reset some connections; return their number."""
        near = [end for end in self._ends if not end.number % 2 and not end.gone]
        chosen = [end for end in near if self._chance.random() < share]
        for end in chosen:
            for each in (end, end.other):
                each.pipe.clear()
                self.reset(each)
        return len(chosen)

    def _ended(self, process: Process) -> None:
        """Close the sockets that a process leaves open, as its kernel does."""
        for listener in [each for each in self.listeners.values() if each.process is process]:
            listener.close()
        for end in [end for end in self._ends if end.process is process]:
            self.forget(end)
            end.gone = True
            if end.host in self._down:
                end.pipe.clear()
            elif end.closing:
                pass
            elif self._chance.random() < 0.5:
                self.carry(end, None)
            else:
                self.reset(end.other)

    def power_off(self, host: str) -> None:
        """Silence a host; the caller ends its processes next.

        Bytes that its kernel still had to send for ended processes are lost.
        """
        self._down.add(host)
        for end in self._ends:
            if end.other.gone and end.other.host == host:
                end.other.pipe.clear()

    def power_on(self, host: str) -> None:
        """Bring a host up again. It does not know its former connections, and resets them when
        written to."""
        self._down.discard(host)
        for end in [end for end in self._ends if end.other.host == host and end.other.gone]:
            # Keep-alive probes and resent bytes discover that sooner or later.
            after_us = self.loop.now_us + self._chance.randrange(100_000, 3_000_000)
            self.loop.call_at_us(after_us, self._reset, end, context=end.process.context)


def _nobody(_piece: bytes) -> None:
    raise AssertionError("bytes came before the connection was made")


def _feed(protocol: asyncio.BaseProtocol, piece: bytes) -> None:
    """Pass bytes to a protocol that has its own buffer."""
    assert isinstance(protocol, asyncio.BufferedProtocol)
    while piece:
        buffer = memoryview(protocol.get_buffer(len(piece)))
        count = min(len(buffer), len(piece))
        buffer[:count] = piece[:count]
        protocol.buffer_updated(count)
        piece = piece[count:]


def _refuse(done: asyncio.Future[tuple[End, asyncio.Protocol]]) -> None:
    if not done.done():
        done.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "connection refused"))


def _accept(end: End, listener: Listener) -> None:
    if listener.factory is None:
        end.abort()
    else:
        end.attach(listener.factory())


def _open(
    end: End,
    factory: Callable[[], asyncio.Protocol],
    done: asyncio.Future[tuple[End, asyncio.Protocol]],
) -> None:
    if done.done():
        end.close()
    elif end.gone:
        done.set_exception(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
    else:
        protocol = factory()
        end.attach(protocol)
        done.set_result((end, protocol))
