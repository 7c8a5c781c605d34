"""Byte stream to frames: the only place that reads a frame's lengths.

    offset  size  field
    0       4     length of everything after this field
    4       1     header codec: 0 JSON, 1 ROCKETMQ (binary)
    5       3     header length H
    8       H     header
    8+H     rest  body, absent when empty

All integers are big-endian (upstream: RemotingCommand.java, NettyDecoder.java). A stream whose
lengths contradict each other cannot be read on, so its error ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, TypeVar

from cometmq.core.errors import RemoteProtocolError

T = TypeVar("T")

#: Gets the owner of a stream, a buffer, and where in it a frame begins. Gives where it stopped, and
#: how many frames from there on it does not want.
TakeFrames: TypeAlias = Callable[[T, bytes, int], tuple[int, int]]

#: Upstream's com.rocketmq.remoting.frameMaxLength: the whole frame, length field included.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
#: A header holds short fields and at most 32 767 bytes of properties, six times that in escapes.
MAX_HEADER_BYTES: Final = 1024 * 1024

#: Pieces that may be of any size, what a small one is, and how large small ones are joined.
_FREE_PIECES: Final = 64
_SMALL_PIECE_BYTES: Final = 512
_JOINED_BYTES: Final = 65_536
#: Frames that are counted in one go as wanted by nobody.
_OTHERS_MAX: Final = 32
#: More frames than are served of a connection at once.
MANY: Final = 1 << 30
#: Nothing is left to be served.
ALL: Final = -1

_LENGTHS: Final = Struct(">II")


class RawFrame(NamedTuple):
    """One frame, undecoded: the codec byte, header bytes and body bytes."""

    codec: int
    header: bytes
    body: bytes


class FrameTooLarge(RemoteProtocolError):
    """A frame over the limit. ``header`` lets the server say so before it closes."""

    code = 13  # ResponseCode.MESSAGE_ILLEGAL

    def __init__(self, size_bytes: int, codec: int, header: bytes) -> None:
        self.size_bytes = size_bytes
        self.codec = codec
        self.header = header
        super().__init__(
            f"frame of {size_bytes} bytes is over the limit of {MAX_FRAME_BYTES}: "
            "send smaller messages or smaller batches"
        )


class Framer:
    """Feed bytes in any pieces, take whole frames out. A server bounds the headers; the answer to
    a batch holds the ids of all its messages in one, so a client does not.

    ``broken`` is the error for which the stream is not read on; whoever reads frames sets it.
    """

    __slots__ = ("_at", "_buffer", "_have", "_max_header_bytes", "_need", "_pieces", "broken")

    def __init__(self, max_header_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_header_bytes = max_header_bytes
        self._buffer = b""
        self._at = 0
        self._pieces: deque[bytes] = deque()
        self._have = 0
        self._need = 8
        self.broken: RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        """Add received bytes. Nothing is parsed yet, so this never fails."""
        size_bytes = len(data)
        if not self._have:
            self._buffer, self._have = data, size_bytes
            return
        pieces = self._pieces
        # Of a byte each, pieces would take forty times their size.
        if size_bytes < _SMALL_PIECE_BYTES and len(pieces) > _FREE_PIECES:
            if len(pieces[-1]) < _JOINED_BYTES:
                pieces[-1] += data
            else:
                pieces.append(data)
        else:
            pieces.append(data)
        self._have += size_bytes

    def receive_whole(self, data: bytes, takers: Mapping[bytes, TakeFrames[T]], owner: T) -> bool:
        """:meth:`receive_data`, for an owner who has nothing left to serve: where no frame was
        begun, the taker of the first request's code has the bytes at once. Gives whether it took
        all of them, as it does with most small reads.
        """
        if self._have or self.broken is not None:
            self.receive_data(data)
            return False
        digits = data[16:24]
        take = takers.get(digits[: digits.find(b",")])
        at = 0 if take is None else take(owner, data, 0)[0]
        if at == len(data):
            return True
        self._buffer, self._have, self._need = data, len(data), 8
        self._settle(at)
        return False

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were received and not taken."""
        return self._have

    @property
    def has_more(self) -> bool:
        """True when :meth:`take` would give a frame or raise, or the stream is broken."""
        return self._have >= self._need or self.broken is not None

    def take(self, limit: int) -> list[RawFrame]:
        """At most ``limit`` whole frames; fewer when the stream has no more.

        Raises RemoteProtocolError when the lengths cannot be those of a frame; frames before the
        bad one are given first, by the calls before.
        """
        frames: list[RawFrame] = []
        if self._have < self._need:
            return frames
        buffer, at = self._joined(), self._at
        end = len(buffer)
        new = tuple.__new__
        while len(frames) < limit:
            if end - at < 8:
                self._need = 8
                break
            total, word = _LENGTHS.unpack_from(buffer, at)
            header_bytes = word & 0xFFFFFF
            if (
                total + 4 > MAX_FRAME_BYTES
                or total < 4 + header_bytes
                or header_bytes > self._max_header_bytes
            ):
                self._need = 8
                if frames:
                    break
                self._refuse(buffer, at, total, word)
                break
            stop = at + 4 + total
            if stop > end:
                self._need = stop - at
                break
            split = at + 8 + header_bytes
            # tuple.__new__ skips NamedTuple's Python-level constructor, which costs as much as
            # both slices.
            frames.append(new(RawFrame, (word >> 24, buffer[at + 8 : split], buffer[split:stop])))
            at = stop
        else:
            # What follows is unknown: an older, larger need would hide whole frames.
            self._need = 8
        self._settle(at)
        return frames

    def offer(self, takers: Mapping[bytes, TakeFrames[T]], owner: T) -> int:
        """Let the taker of the next request's code, in digits, have whole frames from there on.

        Gives how many frames are next that have to be served one by one, ALL when all that was
        received is taken; of a stream that cannot be read on nothing is offered.
        """
        if self.broken is not None:
            return 1
        if self._have < self._need:
            return 0
        buffer, begin = self._joined() if self._pieces else self._buffer, self._at
        # Behind the lengths: {"code":310,
        digits = buffer[begin + 16 : begin + 24]
        take = takers.get(digits[: digits.find(b",")])
        if take is None:
            self._need = 8
            return self._count_others(takers) if takers else MANY
        at, others = take(owner, buffer, begin)
        if at - begin == self._have:
            self._buffer, self._at, self._have, self._need = b"", 0, 0, 8
            return ALL
        if at > begin:
            self._settle(at)
            digits = self._buffer[self._at + 16 : self._at + 24]
            if others and takers.get(digits[: digits.find(b",")]) is not take:
                # What comes next may have another taker.
                self._need = 8
                return 0
        if not others:
            self._need = self._next_bytes()
            # Nobody else says what is wrong with a frame whose lengths cannot be right.
            others = int(self._have >= self._need == 8)
        if others:
            self._need = 8
        return others

    def _count_others(self, takers: Mapping[bytes, TakeFrames[T]]) -> int:
        """How many frames come before the next one that has a taker, at least the first."""
        buffer, at = self._buffer, self._at
        count = 0
        while count < _OTHERS_MAX and len(buffer) - at >= 24:
            digits = buffer[at + 16 : at + 24]
            if digits[: digits.find(b",")] in takers:
                break
            count += 1
            at += 4 + int.from_bytes(buffer[at : at + 4], "big")
        return max(count, 1)

    def _next_bytes(self) -> int:
        """How long the next frame is, so far as that can be told."""
        if self._have < 8:
            return 8
        total, word = _LENGTHS.unpack_from(self._buffer, self._at)
        is_right = 4 + (word & 0xFFFFFF) <= total < MAX_FRAME_BYTES - 3
        # What cannot be right, take() refuses at once.
        return total + 4 if is_right and word & 0xFFFFFF <= self._max_header_bytes else 8

    def _joined(self) -> bytes:
        if self._pieces:
            rest = self._buffer[self._at :] if self._at < len(self._buffer) else b""
            if rest or len(self._pieces) > 1:
                self._pieces.appendleft(rest)
                self._buffer = b"".join(self._pieces)
            else:
                self._buffer = self._pieces[0]
            self._pieces.clear()
            self._at = 0
        return self._buffer

    def _settle(self, at: int) -> None:
        self._have -= at - self._at
        self._at = at
        if self._have == 0:
            self._buffer = b""
            self._at = 0
            self._need = 8
        elif at > _JOINED_BYTES and at * 2 > len(self._buffer):
            # Or one byte of the next frame would keep a large one in memory, uncounted.
            self._buffer = self._buffer[at:]
            self._at = 0

    def _refuse(self, buffer: bytes, at: int, total: int, word: int) -> None:
        header_bytes = word & 0xFFFFFF
        if 4 + header_bytes <= total < MAX_FRAME_BYTES and header_bytes > self._max_header_bytes:
            raise RemoteProtocolError(
                f"header of {header_bytes} bytes is over the limit of {self._max_header_bytes}: "
                "send large data in the body"
            )
        if total >= 4 + header_bytes and header_bytes <= MAX_HEADER_BYTES and total < 1 << 31:
            # A believable frame that is only too large: wait for its header, to answer it.
            if len(buffer) - at < 8 + header_bytes:
                self._need = 8 + header_bytes
                return
            raise FrameTooLarge(total + 4, word >> 24, buffer[at + 8 : at + 8 + header_bytes])
        raise RemoteProtocolError(
            f"frame lengths cannot be right: total {total}, header {header_bytes}; "
            "is the peer speaking another protocol on this port?"
        )
