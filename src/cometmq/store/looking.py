"""What a broker and its looker (broker/looker.py) say to each other: requests one way and answers
the other, each behind its length, answers in the order of the requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

_LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 1 << 20
#: Records that match are laid into memory that both sides have: trays of this size.
TRAY_BYTES: Final = 1 << 20
NO_TRAY: Final = -1
_encode = msgspec.msgpack.Encoder().encode


class BadFrame(Exception):
    """The other side sends something else."""


class Look(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Which of these messages match? Their queue entries (layout.py) are of records in the log
    file at ``path``, which begins at the physical offset ``base``. The records of those that do are
    to be laid into the tray of this number; that is all when it is ``known`` which match."""

    expression: str
    path: str
    base: int
    entries: bytes
    tray: int = NO_TRAY
    known: list[int] | None = None


class Seen(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The numbers of those that match, from 0 and upwards; None when the file has other records.
    The first of them lie in the tray, one behind the other: ``ends`` says where each ends."""

    numbers: list[int] | None
    ends: list[int] = []


def frame(value: Look | Seen) -> bytes:
    """A request or an answer as it is sent."""
    data = _encode(value)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class Frames(Generic[T]):
    """Takes a stream apart, whose frames are of one kind."""

    __slots__ = ("_decode", "_held")

    def __init__(self, kind: type[T]) -> None:
        self._held = bytearray()
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def take(self, data: bytes) -> Iterator[T]:
        """What is whole now. Raises BadFrame for anything else than such frames."""
        held = self._held
        held += data
        while len(held) >= _LENGTH_BYTES:
            size = int.from_bytes(held[:_LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise BadFrame(f"a frame of {size} bytes")
            end = _LENGTH_BYTES + size
            if len(held) < end:
                return
            try:
                value = self._decode(held[_LENGTH_BYTES:end])
            except msgspec.DecodeError as error:
                raise BadFrame(str(error)) from error
            del held[:end]
            yield value
