"""Filtering records as they are stored, without decoding them.

Only lengths are read until the properties are reached; what matches is given as slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct

from cometmq.message.record import MAGIC_V2, PREFIX, SYS_FLAG_POSITION, head_of

_SYS_FLAG = Struct(">i")
_LENGTH = Struct(">i")


@dataclass(frozen=True, slots=True)
class Matches:
    """The records that match, joined where they touch."""

    chunks: list[memoryview]
    count: int
    size_bytes: int


def matching(chunks: Iterable[memoryview], accepts: Callable[[bytes], bool]) -> Matches:
    """Keep the records of ``chunks`` (each of whole records) whose property bytes are accepted."""
    kept: list[memoryview] = []
    count = size_bytes = 0
    for chunk in chunks:
        at, end = 0, len(chunk)
        first = -1
        while at < end:
            size = PREFIX.unpack_from(chunk, at)[0]
            if accepts(stored_properties(chunk, at, size)):
                first = at if first < 0 else first
                count += 1
                size_bytes += size
            elif first >= 0:
                kept.append(chunk[first:at])
                first = -1
            at += size
        if first >= 0:
            kept.append(chunk[first:])
    return Matches(kept, count, size_bytes)


def stored_properties(view: memoryview, at: int, size: int) -> bytes:
    """The property bytes of the record of ``size`` bytes at ``at``."""
    head = head_of(_SYS_FLAG.unpack_from(view, at + SYS_FLAG_POSITION)[0])
    topic_at = at + head.size + _LENGTH.unpack_from(view, at + head.size - _LENGTH.size)[0]
    if PREFIX.unpack_from(view, at)[1] == MAGIC_V2:
        length_at = topic_at + 2 + (view[topic_at] << 8 | view[topic_at + 1])
    else:
        length_at = topic_at + 1 + view[topic_at]
    return bytes(view[length_at + 2 : at + size])
