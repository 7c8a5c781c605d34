"""Clients that send mutated frames to a port, and insist on what a node owes even to them.

A connection whose stream stays readable goes on: a known request behind the frames is answered. One
whose stream cannot be read on is closed by the node, after what came before was answered. One that
was promised more bytes stays open, and is closed once its client says that it sends no more.
Anything else is Unanswered.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from random import Random
from typing import TypeVar

from cometmq.core.errors import RemoteProtocolError
from cometmq.protocol.connection import Connection
from cometmq.protocol.framer import MAX_HEADER_BYTES
from cometmq.replication.transfer import REPORT, TRANSFER
from tests.hostile import frames
from tests.hostile.fuzz import STEP_OPAQUE, answered_opaque

T = TypeVar("T")

Address = tuple[str, int]
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]

AT_ONCE = 25
#: Frames on one lasting connection: what they leave waiting in the node goes with it.
FRAMES_A_CONNECTION = 2_000
#: Connections that stay open though the node waits for the rest of a frame.
UNFINISHED_AT_ONCE = 32
#: A node that says nothing for so long does not answer.
SILENCE_S = 20
_STEP = frames.joined(
    0, b'{"code":38,"extFields":{"consumerGroup":"g"},"flag":0,"opaque":%d}' % STEP_OPAQUE, b""
)
_WRONG_REPORTS = (-1, -(2**63), 2**63 - 1, 2**40)


class Unanswered(AssertionError):
    """A node owed an answer, or the end of a connection, and did not give it."""


class After(Enum):
    """What becomes of a connection after a frame."""

    GOES_ON = 1
    ENDS = 2
    WAITS = 3


def after(frame: bytes, *, keep_fields: bool = False) -> After:
    """What the protocol says of a connection after this frame; a server with accounts keeps the
    fields as text, and so finds errors in fields that others skip."""
    side: Connection[None] = Connection(max_header_bytes=MAX_HEADER_BYTES, keep_fields=keep_fields)
    side.receive_data(frame)
    try:
        while side.has_more:
            side.next_events(8)
    except RemoteProtocolError:
        return After.ENDS
    return After.WAITS if side.buffered_bytes else After.GOES_ON


def mutations(golden: list[bytes], chance: Random) -> Callable[[], bytes]:
    """Gives one mutated frame after another, none that changes who may do what."""

    def one() -> bytes:
        while True:
            frame = frames.mutated(golden, chance)
            if not frames.with_codes_left_out(frame):
                return frame

    return one


class RemotingStranger:
    """Sends `count` frames, each made by `one`, to a remoting port, of a server with accounts if
    it is `guarded`."""

    def __init__(
        self,
        address: Address,
        one: Callable[[], bytes],
        count: int,
        chance: Random,
        *,
        guarded: bool = False,
    ) -> None:
        self._guarded = guarded
        self._address = address
        self._chance = chance
        self._left = count
        self._one = one
        self._unfinished: deque[asyncio.StreamWriter] = deque()

    async def run(self) -> None:
        """Send all; raises Unanswered."""
        try:
            while self._left > 0:
                async with _line(self._address) as line:
                    for _ in range(FRAMES_A_CONNECTION // AT_ONCE):
                        await self._batch(line)
        finally:
            for writer in self._unfinished:
                writer.transport.abort()

    async def _batch(self, line: Line) -> None:
        number = min(AT_ONCE, self._left)
        self._left -= number
        made = [self._one() for _ in range(number)]
        batch = [(after(frame, keep_fields=self._guarded), frame) for frame in made]
        whole = b"".join(frame for kind, frame in batch if kind is After.GOES_ON)
        cut = self._chance.randrange(4 * len(whole) + 1)
        alone = [
            self._alone(frame, kind, self._chance.randrange(2) == 0)
            for kind, frame in batch
            if kind is not After.GOES_ON
        ]
        await asyncio.gather(_in_step(line, whole, cut), *alone)

    async def _alone(self, frame: bytes, kind: After, stays: bool) -> None:
        """Send a frame that ends its connection, or leaves it waiting, behind a known request."""
        reader, writer = await _connect(self._address)
        kept = False
        try:
            writer.write(_STEP + frame)
            await _owed(_step(reader), frame)
            if kind is After.WAITS and stays:
                kept = True
                self._keep(writer)
                return
            if kind is After.WAITS:
                writer.write_eof()
            await _owed(_end(reader), frame)
        finally:
            if not kept:
                writer.transport.abort()

    def _keep(self, writer: asyncio.StreamWriter) -> None:
        self._unfinished.append(writer)
        if len(self._unfinished) > UNFINISHED_AT_ONCE:
            self._unfinished.popleft().transport.abort()


class FalseSlave:
    """Sends `count` reports and frames made by `one` to a replication port, AT_ONCE a connection.

    Most connections begin as a slave's, near the end of the log, which earlier ones have told, and
    report what may be true, in pieces; the last report of each is wrong.
    """

    def __init__(
        self, address: Address, one: Callable[[], bytes], count: int, chance: Random
    ) -> None:
        self._address = address
        self._chance = chance
        self._left = count
        self._one = one
        self._log_end = 0

    async def run(self) -> None:
        """Send all; raises Unanswered."""
        while self._left > 0:
            number = min(AT_ONCE, self._left)
            self._left -= number
            async with _line(self._address) as (reader, writer):
                has = await self._reports(reader, writer, number - 1)
                wrong = self._wrong(has)
                writer.write(wrong)
                if self._chance.randrange(8) == 0:
                    writer.write_eof()
                await _owed(_end(reader), wrong)

    async def _reports(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> int:
        """Report what may be true; gives what was reported last."""
        chance = self._chance
        if chance.randrange(8) == 0 or number < 2:
            return 0
        back = chance.choice((0, 1, 8, 100, 4_096, 100_000))
        has = 0 if chance.randrange(200) == 0 else max(0, self._log_end - back)
        first = chance.randrange(1, number)
        await self._write_in_pieces(writer, [has] * first)
        if has >= self._log_end and has:
            return has
        head = await _owed(reader.readexactly(TRANSFER.size), b"")
        offset, size_bytes = TRANSFER.unpack(head)
        if not has <= offset or size_bytes < 0:
            raise Unanswered(f"a slave that has {has} was sent {size_bytes} bytes from {offset}")
        await _owed(reader.readexactly(size_bytes), head)
        sent = offset + size_bytes
        self._log_end = max(self._log_end, sent)
        later = sorted(chance.randrange(has, sent + 1) for _ in range(number - first))
        await self._write_in_pieces(writer, later)
        return later[-1]

    async def _write_in_pieces(self, writer: asyncio.StreamWriter, reports: list[int]) -> None:
        data = b"".join(map(REPORT.pack, reports))
        cut = self._chance.randrange(len(data))
        writer.write(data[:cut])
        await writer.drain()
        writer.write(data[cut:])

    def _wrong(self, has: int) -> bytes:
        """What cannot be a report behind one of `has`, wherever the one before ended."""
        kind = self._chance.randrange(4)
        if kind == 0:
            return self._one() + b"\xff" * 16
        if kind == 1 and has:
            return REPORT.pack(self._chance.randrange(has))
        return REPORT.pack(self._chance.choice(_WRONG_REPORTS))


async def _connect(address: Address) -> Line:
    async with asyncio.timeout(SILENCE_S):
        return await asyncio.open_connection(*address)


@asynccontextmanager
async def _line(address: Address) -> AsyncIterator[Line]:
    reader, writer = await _connect(address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _in_step(line: Line, whole: bytes, cut: int) -> None:
    reader, writer = line
    writer.write(whole[:cut])
    if cut < len(whole):
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(whole[cut:])
    writer.write(_STEP)
    await _owed(_step(reader), whole)


async def _step(reader: asyncio.StreamReader) -> None:
    while await answered_opaque(reader) != STEP_OPAQUE:
        pass


async def _end(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def _owed(answer: Awaitable[T], sent: bytes) -> T:
    try:
        async with asyncio.timeout(SILENCE_S):
            return await answer
    except (TimeoutError, ConnectionError, EOFError, struct.error, RemoteProtocolError) as error:
        raise Unanswered(f"{type(error).__name__} {error} after {sent!r}") from error
