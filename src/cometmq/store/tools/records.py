"""Records of the log by the column: the numpy twin of ``message.record.decode_one``.

Offsets inside a buffer are called places; ``numpy`` reads them all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cometmq.message.flags import BORN_HOST_V6, STORE_HOST_V6
from cometmq.message.record import FIXED_BYTES, MAGIC_V1, MAGIC_V2
from cometmq.message.walk import Bytes, Ints, numbers, window

_HEAD = np.dtype(
    [
        ("size", ">u4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", "V8"),
        ("store_ms", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_bytes", ">i4"),
    ]
)
_LONGER_HOST_BYTES = 12
_STORE_MS_AT = 56
_BODY_LENGTH_AT = 84


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields of records that stand whole in one buffer; places are bytes of that buffer."""

    starts: Ints
    sizes: Ints
    crcs: Ints
    queue_ids: Ints
    queue_offsets: Ints
    sys_flags: Ints
    store_ms: Ints
    body_at: Ints
    body_bytes: Ints
    topic_at: Ints
    topic_bytes: Ints
    properties_at: Ints
    properties_bytes: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, chosen: Ints | slice) -> Columns:
        """Some of the records."""
        return Columns(*(getattr(self, field.name)[chosen] for field in fields(self)))


def read_columns(raw: Bytes, starts: Ints, base: int) -> Columns:
    """The records that begin at ``starts``, up to the first that is none.

    ``raw``'s first byte has physical offset ``base``. That lengths inside a record fit its size,
    its magic number and its physical offset are checked; its body is not.
    """
    head = window(raw, f"V{_HEAD.itemsize}")[starts].view(_HEAD)
    sizes, sys_flags = numbers(head["size"]), numbers(head["sys_flag"])
    magic = head["magic"]
    is_v2 = magic == MAGIC_V2
    right = (magic == MAGIC_V1) | is_v2
    right &= numbers(head["physical_offset"]) == starts + base
    stops = starts + sizes
    right &= (sizes >= FIXED_BYTES) & (stops <= len(raw))
    born_v6 = _LONGER_HOST_BYTES * ((sys_flags & BORN_HOST_V6) != 0)
    longer = born_v6 + _LONGER_HOST_BYTES * ((sys_flags & STORE_HOST_V6) != 0)
    store_ms, body_bytes = numbers(head["store_ms"]), numbers(head["body_bytes"])
    right &= FIXED_BYTES + longer <= sizes
    moved = np.flatnonzero((longer > 0) & right)
    if len(moved):
        at = starts[moved]
        store_ms[moved] = window(raw, ">i8")[at + _STORE_MS_AT + born_v6[moved]]
        body_bytes[moved] = window(raw, ">i4")[at + _BODY_LENGTH_AT + longer[moved]]
    body_at = starts + longer + _HEAD.itemsize
    length_bytes = 1 + is_v2
    topic_at = body_at + body_bytes + length_bytes
    right &= (body_bytes >= 0) & (topic_at + 2 <= stops)
    # Where a length is wrong, whatever stands at the record's own start is read and not used.
    lengths_at = np.where(right, topic_at - length_bytes, starts)
    topic_bytes = raw[lengths_at].astype(np.int64)
    if is_v2.any():
        topic_bytes = np.where(is_v2, numbers(window(raw, ">u2")[lengths_at]), topic_bytes)
    properties_at = topic_at + topic_bytes + 2
    right &= properties_at <= stops
    properties_bytes = numbers(window(raw, ">u2")[np.where(right, properties_at - 2, starts)])
    right &= properties_at + properties_bytes == stops
    found = Columns(
        starts, sizes, numbers(head["crc"]), numbers(head["queue_id"]),
        numbers(head["queue_offset"]), sys_flags, store_ms, body_at, body_bytes, topic_at,
        topic_bytes, properties_at, properties_bytes,
    )  # fmt: skip
    return found if right.all() else found.rows(slice(int(np.argmin(right))))


def text_codes(raw: Bytes, at: Ints, lengths: Ints) -> Ints:
    """A 64-bit number for each text: equal for equal ones, and for others all but surely not."""
    codes = lengths.astype(np.uint64)
    eight = window(raw, "<u8")
    mix = np.uint64(0x9E37_79B9_7F4A_7C15)
    for length in np.flatnonzero(np.bincount(lengths)):
        rows = np.flatnonzero(lengths == length)
        chosen = slice(None) if len(rows) == len(lengths) else rows
        first = at[chosen]
        value = codes[chosen]
        for step in range(0, int(length) - 7, 8):
            value = (value ^ numbers(eight[first + step]).view(np.uint64)) * mix
            value ^= value >> np.uint64(32)
        rest = int(length) % 8
        if rest:
            # The eight bytes that end with the text; those before it are shifted out.
            last = numbers(eight[first + int(length) - 8]).view(np.uint64)
            value = (value ^ (last >> np.uint64(64 - 8 * rest))) * mix
            value ^= value >> np.uint64(32)
        codes[chosen] = value
    return codes.view(np.int64)


def text_code(text: bytes) -> int:
    """What :func:`text_codes` gives for one text."""
    padded = np.frombuffer(bytes(8) + text + bytes(8), np.uint8)
    return int(text_codes(padded, np.array([8]), np.array([len(text)]))[0])
