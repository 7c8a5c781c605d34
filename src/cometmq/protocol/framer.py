"""Splits a byte stream into frames: the only module that parses a frame's lengths.

    offset  size  field
    0       4     length of everything after this field
    4       1     header codec: 0 JSON, 1 ROCKETMQ (binary)
    5       3     header length H
    8       H     header
    8+H     rest  body, absent when empty

All integers are big-endian (upstream: RemotingCommand.java, NettyDecoder.java). A stream with
inconsistent lengths cannot be parsed further, so its error ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, TypeVar

from cometmq.core.errors import RemoteProtocolError

T = TypeVar("T")

#: A function that serves consecutive frames of one request code without decoding each to an event.
#: Called with the owner of a stream, a buffer, and the position of a frame in it. Returns the
#: position after the frames that it took, and the number of following frames that it cannot take.
BulkHandler: TypeAlias = Callable[[T, bytes, int], tuple[int, int]]

#: Upstream's com.rocketmq.remoting.frameMaxLength: the whole frame, length field included.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
#: A header holds short fields and at most 32 767 bytes of properties; JSON escapes make six times
#: that.
MAX_HEADER_BYTES: Final = 1024 * 1024

#: Pieces of an incomplete frame: the number that is kept as received, the size below which further
#: ones are joined, and the size up to which a joined one grows.
_FREE_PIECES: Final = 64
_SMALL_PIECE_BYTES: Final = 512
_JOINED_BYTES: Final = 65_536
#: Maximum number of frames without a bulk handler that one call counts.
_OTHERS_MAX: Final = 32
#: Result of :meth:`Framer.offer` if no bulk handlers are given: more frames than a turn serves.
MANY: Final = 1 << 30
#: Result of :meth:`Framer.offer` if all received bytes were taken.
ALL: Final = -1

_LENGTHS: Final = Struct(">II")


class RawFrame(NamedTuple):
    """One frame, undecoded: the codec byte, header bytes and body bytes."""

    codec: int
    header: bytes
    body: bytes


class FrameTooLarge(RemoteProtocolError):
    """A frame exceeds the limit. With ``header`` the server can respond before it closes."""

    code = 13  # ResponseCode.MESSAGE_ILLEGAL

    def __init__(self, size_bytes: int, codec: int, header: bytes) -> None:
        self.size_bytes = size_bytes
        self.codec = codec
        self.header = header
        super().__init__(
            f"frame of {size_bytes} bytes is over the limit of {MAX_FRAME_BYTES}: "
            "send smaller messages or smaller batches"
        )


class HeaderTooLarge(RemoteProtocolError):
    """A header exceeds the limit of this side."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"header of {size_bytes} bytes is over the limit of {limit_bytes}: send large data in "
            "the body"
        )


#: First two bytes of a TLS handshake. Read as a frame's length they mean 369 MB.
_TLS_HANDSHAKE: Final = 0x1603


class Framer:
    """Splits received bytes into whole frames.

    A server limits the size of headers. A client does not, because the response to a batch has the
    ids of all its messages in the header. ``broken`` is the error after which the stream cannot be
    parsed further; the subclass that decodes headers sets it.
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
        # A bytes object of one byte takes forty bytes, so small pieces are joined.
        if size_bytes < _SMALL_PIECE_BYTES and len(pieces) > _FREE_PIECES:
            if len(pieces[-1]) < _JOINED_BYTES:
                pieces[-1] += data
            else:
                pieces.append(data)
        else:
            pieces.append(data)
        self._have += size_bytes

    def receive_whole(
        self, data: bytes, bulk_handlers: Mapping[bytes, BulkHandler[T]], owner: T
    ) -> bool:
        """Add received bytes, or pass them at once to a bulk handler; return whether it took all.

        Call it instead of :meth:`receive_data` if no complete frame is buffered. If no partial
        frame is buffered either, the bulk handler of the first frame's code gets ``data`` without a
        copy. Small reads are usually taken completely.
        """
        if self._have or self.broken is not None:
            self.receive_data(data)
            return False
        digits = data[16:24]
        take = bulk_handlers.get(digits[: digits.find(b",")])
        at = 0 if take is None else take(owner, data, 0)[0]
        if at == len(data):
            return True
        self._buffer, self._have, self._need = data, len(data), 8
        self._settle(at)
        return False

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes that were received and not taken."""
        return self._have

    @property
    def has_more(self) -> bool:
        """True when :meth:`take` would return a frame or raise, or the stream is broken."""
        return self._have >= self._need or self.broken is not None

    def begun_header(self) -> tuple[int, bytes] | None:
        """Return codec and header of the next frame, whose body is incomplete.

        Returns None if the header is incomplete too.
        """
        buffer, at = self._joined(), self._at
        if len(buffer) - at < 8:
            return None
        _, word = _LENGTHS.unpack_from(buffer, at)
        header = buffer[at + 8 : at + 8 + (word & 0xFFFFFF)]
        return (word >> 24, header) if len(header) == word & 0xFFFFFF else None

    def take(self, limit: int) -> list[RawFrame]:
        """Return at most ``limit`` whole frames; fewer if the next one is incomplete.

        Raises RemoteProtocolError when lengths are invalid; frames before the invalid one are
        returned first, by earlier calls.
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
            # _need may still be the size of an earlier, larger frame, which would hide the next.
            self._need = 8
        self._settle(at)
        return frames

    def offer(self, bulk_handlers: Mapping[bytes, BulkHandler[T]], owner: T) -> int:
        """Pass frames to the bulk handler of the next frame's code.

        The keys of ``bulk_handlers`` are codes as decimal text. Returns the number of following
        frames that must be taken singly, or ALL when all received bytes were taken. A broken stream
        returns 1: taking an event then raises its error.
        """
        if self.broken is not None:
            return 1
        if self._have < self._need:
            return 0
        buffer, begin = self._joined() if self._pieces else self._buffer, self._at
        # After 8 bytes of lengths a JSON header begins with {"code":310, so the code is at 16.
        digits = buffer[begin + 16 : begin + 24]
        take = bulk_handlers.get(digits[: digits.find(b",")])
        if take is None:
            self._need = 8
            return self._count_others(bulk_handlers) if bulk_handlers else MANY
        at, others = take(owner, buffer, begin)
        if at - begin == self._have:
            self._buffer, self._at, self._have, self._need = b"", 0, 0, 8
            return ALL
        if at > begin:
            self._settle(at)
            digits = self._buffer[self._at + 16 : self._at + 24]
            if others and bulk_handlers.get(digits[: digits.find(b",")]) is not take:
                # The next frame has another code, maybe with its own bulk handler: offer again.
                self._need = 8
                return 0
        if not others:
            self._need = self._next_bytes()
            # A frame with invalid lengths must be taken singly, because only take() reports the
            # error.
            others = int(self._have >= self._need == 8)
        if others:
            self._need = 8
        return others

    def _count_others(self, bulk_handlers: Mapping[bytes, BulkHandler[T]]) -> int:
        """Return the number of frames before the next one that has a bulk handler, at least 1."""
        buffer, at = self._buffer, self._at
        count = 0
        while count < _OTHERS_MAX and len(buffer) - at >= 24:
            digits = buffer[at + 16 : at + 24]
            if digits[: digits.find(b",")] in bulk_handlers:
                break
            count += 1
            at += 4 + int.from_bytes(buffer[at : at + 4], "big")
        return max(count, 1)

    def _next_bytes(self) -> int:
        """Return the size of the next frame, or 8 if it is unknown or invalid."""
        if self._have < 8:
            return 8
        total, word = _LENGTHS.unpack_from(self._buffer, self._at)
        is_right = 4 + (word & 0xFFFFFF) <= total < MAX_FRAME_BYTES - 3
        # take() rejects invalid lengths at once.
        return total + 4 if is_right and word & 0xFFFFFF <= self._max_header_bytes else 8

    def _joined(self) -> bytes:
        """Return the buffer after appending all pieces to it."""
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
        """Drop the bytes before position ``at``, which were taken."""
        self._have -= at - self._at
        self._at = at
        if self._have == 0:
            self._buffer = b""
            self._at = 0
            self._need = 8
        elif at > _JOINED_BYTES and at * 2 > len(self._buffer):
            # Otherwise one byte of the next frame would keep a large buffer, which no account has.
            self._buffer = self._buffer[at:]
            self._at = 0

    def _refuse(self, buffer: bytes, at: int, total: int, word: int) -> None:
        """Raise the error for invalid lengths; return to wait for the header of a large frame."""
        header_bytes = word & 0xFFFFFF
        if total >> 16 == _TLS_HANDSHAKE:
            # Raise at once: a TLS client sends its hello once and then waits for a response.
            raise RemoteProtocolError(
                "the peer begins a TLS handshake, and TLS is off here: set tls.server.mode, or "
                "turn TLS off at the peer"
            )
        if 4 + header_bytes <= total < MAX_FRAME_BYTES and header_bytes > self._max_header_bytes:
            raise HeaderTooLarge(header_bytes, self._max_header_bytes)
        if total >= 4 + header_bytes and header_bytes <= MAX_HEADER_BYTES and total < 1 << 31:
            # A plausible frame that is only too large: wait for its header, to respond to it.
            if len(buffer) - at < 8 + header_bytes:
                self._need = 8 + header_bytes
                return
            raise FrameTooLarge(total + 4, word >> 24, buffer[at + 8 : at + 8 + header_bytes])
        raise RemoteProtocolError(
            f"frame lengths cannot be right: total {total}, header {header_bytes}; "
            "is the peer speaking another protocol on this port?"
        )
