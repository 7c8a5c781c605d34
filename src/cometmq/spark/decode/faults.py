"""What is wrong with single records of a block, and how a block is read in spite of them.

A record whose sizes contradict each other is mended in a copy: everything behind its head becomes
one body, so that the others can be read, and of it the head. Bodies are checked by unpacking and by
their CRC, texts by their UTF-8 and by the grammar of properties: what other clients read by
guessing (a broken byte as U+FFFD, a pair without its value left out) is told here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.message.record import (
    HEAD,
    HOST_BITS,
    MAGIC_POSITION,
    MAGIC_V1,
    SYS_FLAG_POSITION,
    BadRecord,
    decode_one,
    head_of,
    verify,
)
from cometmq.spark.decode.gather import slices
from cometmq.spark.schema import CORRUPT, arrow_schema

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.spark.decode.records import Block

_INT: Final = Struct(">I")
_TAIL: Final = b"\0\0\0"
"""No topic, no properties."""

#: A name without its value, or a value without its name.
_BROKEN_PAIR: Final = re.compile(rb"\x02(?:[^\x01\x02\xff]++(?=[\x02\xff])|\x01)")
_ONLY_IN_TEXTS: Final = ("topic",)


@dataclass(frozen=True, slots=True)
class Faults:
    """Why rows of a block are bad. Of those that are ``unreadable`` only the head is right;
    ``bodies``, where they were asked for, are null in bad places."""

    reasons: Mapping[int, str]
    unreadable: frozenset[int]
    bodies: pa.Array | None = field(default=None)


def mended(data: bytes, starts: Ints) -> tuple[bytes, dict[int, str]]:
    """The bytes with every record readable, and what was wrong, by where a record begins."""
    problems: dict[int, str] = {}
    for start in starts.tolist():
        try:
            decode_one(data, start, check_crc=False)
        except BadRecord as error:
            problems[start] = error.problem
    if not problems:
        return data, problems
    copy = bytearray(data)
    for start in problems:
        _mend(copy, start)
    return bytes(copy), problems


def _mend(data: bytearray, start: int) -> None:
    size = _INT.unpack_from(data, start)[0]
    flags = _INT.unpack_from(data, start + SYS_FLAG_POSITION)[0]
    head_bytes = head_of(flags).size
    if size < head_bytes + len(_TAIL):
        _INT.pack_into(data, start + SYS_FLAG_POSITION, flags & ~HOST_BITS)
        head_bytes = HEAD.size
    _INT.pack_into(data, start + MAGIC_POSITION, MAGIC_V1)
    body_bytes = size - head_bytes - len(_TAIL)
    _INT.pack_into(data, start + head_bytes - _INT.size, body_bytes)
    data[start + size - len(_TAIL) : start + size] = _TAIL


def find(
    block: Block, known: Mapping[int, str], *, bodies: bool, crcs: bool, texts: bool
) -> Faults:
    """What is wrong with the rows of a block: what is ``known`` by where records begin, and what
    the checks find."""
    starts = block.fields.starts
    unreadable = (
        {row: known[start] for row, start in enumerate(starts.tolist()) if start in known}
        if known
        else {}
    )
    found = dict(unreadable)
    unpacked: pa.Array | None = None
    if crcs:
        _add(found, _of_crcs(block))
    if bodies:
        unpacked, problems = block.unpacked()
        _add(found, problems.items())
        bad = found.keys() if crcs else {*unreadable, *problems}
        unpacked = _without(unpacked, bad)
    if texts:
        _add(found, _of_texts(block))
    return Faults(dict(sorted(found.items())), frozenset(unreadable), unpacked)


def batches(
    block: Block, faults: Faults, names: tuple[str, ...], rows_max: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a block, bad ones with what can be known of them and the reason."""
    if not len(block):
        return
    arrays = [_column(block, faults, name) for name in names]
    whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
    for start in range(0, len(block), rows_max):
        yield whole.slice(start, rows_max)


def _column(block: Block, faults: Faults, name: str) -> pa.Array:
    if name == CORRUPT.name and faults.reasons:
        return pa.array([faults.reasons.get(row) for row in range(len(block))], pa.string())
    if name == "body" and faults.bodies is not None:
        return faults.bodies
    found = block.column(name)
    return _without(found, faults.unreadable) if name in _ONLY_IN_TEXTS else found


def _without(values: pa.Array, rows: Iterable[int]) -> pa.Array:
    places = list(rows)
    if not places:
        return values
    taken = np.arange(len(values))
    gone = np.zeros(len(values), np.bool_)
    gone[places] = True
    return values.take(pa.array(taken, mask=gone))


def _add(found: dict[int, str], more: Iterable[tuple[int, str]]) -> None:
    for row, problem in more:
        found.setdefault(row, problem)


def _of_crcs(block: Block) -> Iterator[tuple[int, str]]:
    fields = block.fields
    view = fields.raw.data
    crcs = fields.number("body_crc").tolist()
    places = zip(crcs, fields.body_starts.tolist(), fields.body_ends.tolist(), strict=True)
    for row, (crc, start, end) in enumerate(places):
        if not verify(view[start:end], crc):
            yield row, f"body CRC differs from the stored {crc:#010x}"


def _of_texts(block: Block) -> Iterator[tuple[int, str]]:
    fields = block.fields
    view = fields.raw.data
    are_topics = _are_utf8(view, fields.topic_starts, fields.topic_ends)
    if not len(block) or (are_topics and _are_pairs(block)):
        return
    topics = _slices(view, fields.topic_starts, fields.topic_ends)
    properties = _slices(view, fields.properties_starts, fields.ends)
    for row, (topic, text) in enumerate(zip(topics, properties, strict=True)):
        if not _is_utf8(topic):
            yield row, "topic is no UTF-8"
        if not _is_utf8(text):
            yield row, "properties are no UTF-8"
        # What parts texts is in none that is UTF-8.
        if _BROKEN_PAIR.search(b"\x02%b\x02" % bytes(text).replace(b"\xff", b"\xfe")):
            yield row, "properties hold something that is no name with a value"


def _are_pairs(block: Block) -> bool:
    """Whether nothing is wrong with any row's properties."""
    fields = block.fields
    view, starts = fields.raw.data, fields.properties_starts
    if not _are_utf8(view, starts, fields.ends):
        return False
    # With the two bytes of its length, which make room for what parts texts.
    taken = slices(view, starts - 2, fields.ends)
    lengths = fields.ends - starts + 2
    texts = np.full(int(lengths.sum()) + 1, 0xFF, np.uint8)
    texts[:-1] = np.frombuffer(taken.buffers()[2], np.uint8, len(texts) - 1)
    heads = np.cumsum(lengths) - lengths
    texts[heads] = 0xFF
    texts[heads + 1] = 0x02
    return _BROKEN_PAIR.search(texts.data) is None


def _are_utf8(view: memoryview, starts: Ints, ends: Ints) -> bool:
    try:
        slices(view, starts, ends).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _slices(view: memoryview, starts: Ints, ends: Ints) -> list[memoryview]:
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    return [view[start:end] for start, end in places]


def _is_utf8(raw: bytes | memoryview) -> bool:
    try:
        str(raw, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
