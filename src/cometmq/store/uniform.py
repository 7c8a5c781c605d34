"""Batches whose messages are built alike, taken apart by the column.

A producer that batches mostly sends messages of one shape: equal body length, the same properties
in the same order, values of equal length. What has to be equal in all of them is then compared byte
by byte over the whole batch, and one layout reads every message. Whatever is not exactly so is
refused here and goes the general way (batching.py), which gives the same columns.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cometmq.message import properties as props
from cometmq.message.batch import ENTRY_BYTES
from cometmq.message.record import CRC_MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIFORM_ROWS = 8
"""Messages from which on this is the shorter way."""

_LENGTHS = (0, 1, 2, 3, 16, 17, 18, 19)
_UNIQUE, _KEYS, _TAGS = (name.encode() for name in (props.UNIQ_KEY, props.KEYS, props.TAGS))


class Uniform(NamedTuple):
    """Messages column by column; ``bodies`` begin with their length.

    All have the same tag, and all have a unique key or none has.
    """

    flags: Sequence[int]
    crcs: list[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    keys: list[str]
    tag: bytes


class _Shape(NamedTuple):
    """What the first message's properties have where; positions count from their begin.

    ``free`` are the bytes that may differ from message to message.
    """

    unique: range
    tag: bytes
    free: set[int]


def recognise(raw: bytes) -> Uniform | None:
    """A batch body taken apart; None when its messages are not all built alike."""
    size = int.from_bytes(raw[:4], "big")
    body_bytes = int.from_bytes(raw[16:20], "big")
    own_at = ENTRY_BYTES + body_bytes + 2
    own_bytes = size - own_at
    if own_bytes < 0 or len(raw) % size or len(raw) < UNIFORM_ROWS * size:
        return None
    shape = _shape_of(raw[own_at:size])
    if shape is None or int.from_bytes(raw[own_at - 2 : own_at], "big") != own_bytes:
        return None
    if not _same_columns(raw, size, own_at, shape):
        return None
    entries = Struct(f">12xi{4 + body_bytes}s2x{own_bytes}s").iter_unpack(raw)
    flags, bodies, properties = zip(*entries, strict=True)
    only_bodies = Struct(f"{ENTRY_BYTES}x{body_bytes}s{size - own_at + 2}x").iter_unpack(raw)
    crcs = [crc32(body) & CRC_MASK for (body,) in only_bodies]
    return Uniform(flags, crcs, bodies, properties, _keys(raw, size, own_at, shape), shape.tag)


def _same_columns(raw: bytes, size: int, own_at: int, shape: _Shape) -> bool:
    count = len(raw) // size
    unique, free = shape.unique, shape.free
    for position in (*_LENGTHS, *range(own_at - 2, size)):
        column = raw[position::size]
        if column != column[:1] * count:
            at = position - own_at
            if at not in free or b"\x02" in column:
                return False
            if at in unique and not column.isascii():
                return False
    return True


def _keys(raw: bytes, size: int, own_at: int, shape: _Shape) -> list[str]:
    width = len(shape.unique)
    if not width:
        return []
    # What is read of it is ASCII, so the place of a byte is that of a character.
    text = raw.decode("latin-1")
    first = own_at + shape.unique.start
    return [text[at : at + width] for at in range(first, len(text), size)]


def _shape_of(own: bytes) -> _Shape | None:
    position = 0
    unique, tag = range(0), b""
    free: set[int] = set()
    for pair in own.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        values = range(position + len(name) + 1, position + len(pair))
        position += len(pair) + 1
        if not name or not value or name == _KEYS or (name == _TAGS and tag):
            return None
        if name == _TAGS:
            tag = value
            continue
        if name == _UNIQUE:
            if unique or not value.isascii():
                return None
            unique = values
        free.update(values)
    return _Shape(unique, tag, free)
