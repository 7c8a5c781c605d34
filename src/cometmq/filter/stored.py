"""Filtering records as they are stored, without decoding them.

Only lengths are read until the properties are reached; what matches is given as slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from struct import Struct
from typing import TYPE_CHECKING

from cometmq.filter.columns import CODEC, texts_of
from cometmq.message.flags import BORN_HOST_V6, STORE_HOST_V6
from cometmq.message.record import HEAD, MAGIC_V1, MAGIC_V2, PREFIX, SYS_FLAG_POSITION, head_of

if TYPE_CHECKING:
    from cometmq.message.record import Buffer

_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
#: Magic, sysFlag and body length of a record with IPv4 hosts, whose body begins at _BODY_AT.
_plain_head = Struct(">4xI28xi44xi").unpack_from
_BODY_AT = HEAD.size
#: Behind the lengths of body, topic and properties.
_TOPIC_AT = _BODY_AT + 3
_SYS_FLAG = Struct(">i")
_LENGTH = Struct(">i")


@dataclass(frozen=True, slots=True)
class Matches:
    """The records that match, joined where they touch."""

    chunks: list[memoryview]
    count: int
    size_bytes: int
    #: Of the properties of all records that were looked at.
    looked_bytes: int = 0


def matching(
    chunks: Iterable[memoryview], matches: Callable[[Sequence[Buffer]], Sequence[bool]]
) -> Matches:
    """Keep the records of ``chunks`` (each of whole records) that match: ``matches`` gets the
    property bytes of all of them and says it of each."""
    places = [(chunk, at, size) for chunk in chunks for at, size in _records(chunk)]
    properties = [stored_properties(chunk, at, size) for chunk, at, size in places]
    verdicts = matches(properties)
    kept: list[memoryview] = []
    size_bytes = 0
    last: memoryview | None = None
    first = stop = 0
    for chunk, at, size in compress(places, verdicts):
        size_bytes += size
        if chunk is not last or at != stop:
            if last is not None:
                kept.append(last[first:stop])
            last, first = chunk, at
        stop = at + size
    if last is not None:
        kept.append(last[first:stop])
    return Matches(kept, sum(verdicts), size_bytes, sum(map(len, properties)))


def _records(chunk: memoryview) -> Iterator[tuple[int, int]]:
    at, end = 0, len(chunk)
    while at < end:
        size = PREFIX.unpack_from(chunk, at)[0]
        yield at, size
        at += size


def texts_at(data: bytes | memoryview, starts: Sequence[int], sizes: Sequence[int]) -> list[str]:
    """The property texts (columns.py) of the records that begin at ``starts``."""
    heads = map(_plain_head, repeat(data), starts)
    places = zip(starts, sizes, heads, strict=True)
    if isinstance(data, bytes):
        text = data.decode(CODEC)
        return [
            text[at + body_bytes + _TOPIC_AT + data[at + body_bytes + _BODY_AT] : at + size]
            if magic == MAGIC_V1 and not sys_flag & _HOST_BITS
            else str(stored_properties(memoryview(data), at, size), CODEC)
            for at, size, (magic, sys_flag, body_bytes) in places
        ]
    return texts_of(
        data[at + body_bytes + _TOPIC_AT + data[at + body_bytes + _BODY_AT] : at + size]
        if magic == MAGIC_V1 and not sys_flag & _HOST_BITS
        else stored_properties(data, at, size)
        for at, size, (magic, sys_flag, body_bytes) in places
    )


def stored_properties(view: memoryview, at: int, size: int) -> memoryview:
    """The property bytes of the record of ``size`` bytes at ``at``."""
    head = head_of(_SYS_FLAG.unpack_from(view, at + SYS_FLAG_POSITION)[0])
    topic_at = at + head.size + _LENGTH.unpack_from(view, at + head.size - _LENGTH.size)[0]
    if PREFIX.unpack_from(view, at)[1] == MAGIC_V2:
        length_at = topic_at + 2 + (view[topic_at] << 8 | view[topic_at + 1])
    else:
        length_at = topic_at + 1 + view[topic_at]
    return view[length_at + 2 : at + size]
