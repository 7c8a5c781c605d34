"""Where the fields of records stand in a buffer, checked once, and their numbers.

Every length of a record has to add up to its size (see message/record.py), so nothing that is read
by these places lies outside of its record.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.message.flags import BORN_HOST_V6, STORE_HOST_V6
from cometmq.message.record import FIXED_BYTES, MAGIC_V1, MAGIC_V2, BadRecord
from cometmq.message.walk import Bytes, Ints, find_places, numbers, problem_at, window

Flags = npt.NDArray[np.bool_]

_V6_EXTRA: Final = 12
HEAD: Final = np.dtype(
    [
        ("size_bytes", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", ">i8"),
        ("store_timestamp", ">i8"),
        ("store_host", ">i8"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_bytes", ">i4"),
    ]
)
"""Everything before the body of a record with IPv4 hosts."""
_BEHIND_BORN_HOST: Final = {"store_timestamp": (0, ">i8"), "store_host": (8, ">i8")}
_BEHIND_STORE_HOST: Final = {
    "reconsume_times": (0, ">i4"),
    "prepared_offset": (4, ">i8"),
    "body_bytes": (12, ">i4"),
}


@dataclass(frozen=True, slots=True)
class Fields:
    """Places of records: ``starts`` of the whole, ``after_born`` and ``after_store`` behind the
    hosts, and begin and end of body, topic and properties. All are bytes of ``raw``; ``heads`` are
    copies of what stands before the body, of type HEAD."""

    raw: Bytes
    heads: npt.NDArray[np.void]
    starts: Ints
    sizes: Ints
    sys_flags: Ints
    after_born: Ints
    after_store: Ints
    body_ends: Ints
    topic_starts: Ints
    topic_ends: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def body_starts(self) -> Ints:
        """Where bodies begin."""
        return self.after_store + 16

    @property
    def properties_starts(self) -> Ints:
        """Where property texts begin."""
        return self.topic_ends + 2

    @property
    def ends(self) -> Ints:
        """Where records, and so their property texts, end."""
        return self.starts + self.sizes

    def rows(self, chosen: Flags | Ints) -> Fields:
        """Some of the records."""
        places = (getattr(self, field.name)[chosen] for field in fields(self)[1:])
        return Fields(self.raw, *places)

    def number(self, name: str) -> Ints:
        """The column ``name``, one of numbers or of times in milliseconds."""
        if name == "sys_flag":
            return self.sys_flags
        if name == "size_bytes":
            return self.sizes
        return _number(self.raw, self.heads, name, self.after_born, self.after_store)


def gather(raw: Bytes, at: Ints, kind: str) -> Ints:
    """Big-endian integers at any byte positions."""
    return numbers(window(raw, kind)[at])


def _number(
    raw: Bytes, heads: npt.NDArray[np.void], name: str, after_born: Ints, after_store: Ints
) -> Ints:
    """A number of the head. Behind a longer host it stands elsewhere than the copies say."""
    found = numbers(heads[name])
    if name in _BEHIND_BORN_HOST:
        at, kind = _BEHIND_BORN_HOST[name]
        moved = np.flatnonzero(heads["sys_flag"] & BORN_HOST_V6)
        if len(moved):
            found[moved] = gather(raw, after_born[moved] + at, kind)
    elif name in _BEHIND_STORE_HOST:
        at, kind = _BEHIND_STORE_HOST[name]
        moved = np.flatnonzero(heads["sys_flag"] & (BORN_HOST_V6 | STORE_HOST_V6))
        if len(moved):
            found[moved] = gather(raw, after_store[moved] + at, kind)
    return found


def walk(data: bytes, base: int | None = None) -> Ints:
    """Where each record of a block of whole records begins.

    ``base`` is the physical offset of the block's first byte, None where the records are not
    neighbours in the log. Only sizes are looked at. Raises BadRecord where the chain of them ends
    before the block does.
    """
    places = find_places(data, base)
    if places.stop != len(data):
        raise BadRecord(places.stop, _why_none(data, places.stop, base))
    return places.starts


def _why_none(data: bytes, at: int, base: int | None) -> str:
    left = len(data) - at
    if left < FIXED_BYTES:
        return f"{left} bytes left over"
    size = int.from_bytes(data[at : at + 4], "big")
    return problem_at(data, at, base) or f"size is {size}, {left} bytes are there"


def read_fields(data: bytes, starts: Ints) -> Fields:
    """The fields of the records that begin at ``starts``, at least FIXED_BYTES before the end.

    Raises BadRecord for the first that is none.
    """
    raw = np.frombuffer(data, np.uint8)
    # One copy of the heads: reading each number where it stands would fetch every record anew.
    heads = window(raw, f"V{HEAD.itemsize}")[starts].view(HEAD)
    magic = heads["magic"]
    is_v2 = magic == MAGIC_V2
    bad = (magic != MAGIC_V1) & ~is_v2
    if bad.any():
        at = int(np.argmax(bad))
        raise BadRecord(int(starts[at]), f"magic is {int(magic[at]):#010x}")
    sizes = numbers(heads["size_bytes"])
    ends = starts + sizes
    _refuse(starts, (sizes < FIXED_BYTES) | (ends > len(raw)), "its size leaves the block")
    sys_flags = numbers(heads["sys_flag"])
    after_born, after_store = _behind_hosts(starts, sys_flags)
    body_starts = after_store + 16
    _refuse(starts, body_starts + 3 > ends, "its hosts alone need more than its size")
    body_ends = body_starts + _number(raw, heads, "body_bytes", after_born, after_store)
    topic_starts = body_ends + 1 + is_v2
    _refuse(
        starts, (body_ends < body_starts) | (topic_starts + 2 > ends), "its body length leaves it"
    )
    topic_bytes = raw[body_ends].astype(np.int64)
    if is_v2.any():
        topic_bytes = np.where(is_v2, topic_bytes << 8 | raw[topic_starts - 1], topic_bytes)
    topic_ends = topic_starts + topic_bytes
    _refuse(starts, topic_ends + 2 > ends, "its topic length leaves it")
    stops = topic_ends + 2 + gather(raw, topic_ends, ">u2")
    _refuse(starts, stops != ends, "its properties length leaves it")
    return Fields(
        raw, heads, starts, sizes, sys_flags, after_born, after_store, body_ends, topic_starts,
        topic_ends,
    )  # fmt: skip


def _behind_hosts(starts: Ints, sys_flags: Ints) -> tuple[Ints, Ints]:
    if not (sys_flags & (BORN_HOST_V6 | STORE_HOST_V6)).any():
        return starts + 56, starts + 72
    born_extra = np.where(sys_flags & BORN_HOST_V6, _V6_EXTRA, 0)
    store_extra = np.where(sys_flags & STORE_HOST_V6, _V6_EXTRA, 0)
    return starts + 56 + born_extra, starts + 72 + born_extra + store_extra


def _refuse(starts: Ints, bad: Flags, problem: str) -> None:
    if bad.any():
        raise BadRecord(int(starts[np.argmax(bad)]), problem)
