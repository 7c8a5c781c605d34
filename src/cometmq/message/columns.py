"""Records of a buffer by the column: what ``record.iter_spans`` says of each, of all at once.

Every length of a record has to add up to its size, so nothing that is read by these places lies
outside of its record. Bodies are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.message.flags import BORN_HOST_V6, STORE_HOST_V6
from cometmq.message.record import (
    FIXED_BYTES,
    HEAD_COLUMNS,
    HOST_BITS,
    LONGER_HOST_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    POSITIONS,
    BadRecord,
    iter_spans,
)
from cometmq.message.walk import Bytes, Flags, Ints, numbers, window

_HEAD: Final = np.dtype(HEAD_COLUMNS)
_KINDS: Final = dict(HEAD_COLUMNS)
#: The first fields behind the hosts.
_AFTER_BORN: Final = POSITIONS["store_ms"]
_AFTER_STORE: Final = POSITIONS["reconsume_times"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Places of records: ``starts`` of the whole, ``after_born`` and ``after_store`` behind the
    hosts, and begin and end of body, topic and properties. All are bytes of ``raw``; ``heads`` are
    copies of what stands before the body, right where both hosts are IPv4."""

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
        return self.after_store + (_HEAD.itemsize - _AFTER_STORE)

    @property
    def properties_starts(self) -> Ints:
        """Where property texts begin."""
        return self.topic_ends + 2

    @property
    def ends(self) -> Ints:
        """Where records, and so their property texts, end."""
        return self.starts + self.sizes

    def rows(self, chosen: Flags | Ints) -> Columns:
        """Some of the records."""
        places = (getattr(self, field.name)[chosen] for field in fields(self)[1:])
        return Columns(self.raw, *places)

    def number(self, name: str) -> Ints:
        """The numbers of a field of the head (``record.HEAD_FIELDS``)."""
        return _number(self.raw, self.heads, name, self.after_born, self.after_store)


def read_columns(raw: Bytes, starts: Ints, base: int | None = None) -> tuple[Columns, str]:
    """The records that begin at ``starts``, each at least FIXED_BYTES before the end of ``raw``, up
    to the first that is none; and why it is none, empty when all are right.

    With ``base``, the physical offset of ``raw``'s first byte, each must carry the offset at which
    it stands.
    """
    problem = ""
    while isinstance(found := _columns(raw, starts, base), int):
        problem = _problem(raw, int(starts[found]), base)
        starts = starts[:found]
    return found, problem


def _columns(raw: Bytes, starts: Ints, base: int | None) -> Columns | int:
    """The records, or the number of one that is none: the first of which the next step would read
    what is not there."""
    # One copy of the heads: reading each number where it stands would fetch every record anew.
    heads = window(raw, f"V{_HEAD.itemsize}")[starts].view(_HEAD)
    is_v2 = heads["magic"] == MAGIC_V2
    sizes, sys_flags = numbers(heads["size_bytes"]), numbers(heads["sys_flag"])
    ends = starts + sizes
    after_born, after_store = _behind_hosts(starts, sys_flags)
    body_starts = after_store + (_HEAD.itemsize - _AFTER_STORE)
    right = (heads["magic"] == MAGIC_V1) | is_v2
    right &= (sizes >= FIXED_BYTES) & (ends <= len(raw)) & (body_starts + 3 <= ends)
    if base is not None:
        right &= numbers(heads["physical_offset"]) == starts + base
    if not right.all():
        return int(np.argmin(right))
    body_ends = body_starts + _number(raw, heads, "body_bytes", after_born, after_store)
    topic_starts = body_ends + 1 + is_v2
    right = (body_ends >= body_starts) & (topic_starts + 2 <= ends)
    if not right.all():
        return int(np.argmin(right))
    topic_bytes = raw[body_ends].astype(np.int64)
    if is_v2.any():
        topic_bytes = np.where(is_v2, topic_bytes << 8 | raw[topic_starts - 1], topic_bytes)
    topic_ends = topic_starts + topic_bytes
    right = topic_ends + 2 <= ends
    if not right.all():
        return int(np.argmin(right))
    right = topic_ends + 2 + numbers(window(raw, ">u2")[topic_ends]) == ends
    if not right.all():
        return int(np.argmin(right))
    return Columns(
        raw, heads, starts, sizes, sys_flags, after_born, after_store, body_ends, topic_starts,
        topic_ends,
    )  # fmt: skip


def _problem(raw: Bytes, at: int, base: int | None) -> str:
    try:
        next(iter_spans(raw.data, at, base=base, check_crc=False))
    except BadRecord as error:
        return error.problem
    raise AssertionError(f"a record stands at {at}")


def _number(
    raw: Bytes, heads: npt.NDArray[np.void], name: str, after_born: Ints, after_store: Ints
) -> Ints:
    """A number of the head. Behind a longer host it stands elsewhere than the copies say."""
    found = numbers(heads[name])
    position = POSITIONS[name]
    if position >= _AFTER_BORN:
        is_last = position >= _AFTER_STORE
        moved = np.flatnonzero(heads["sys_flag"] & (HOST_BITS if is_last else BORN_HOST_V6))
        if len(moved):
            places = after_store - _AFTER_STORE if is_last else after_born - _AFTER_BORN
            found[moved] = window(raw, _KINDS[name])[places[moved] + position]
    return found


def _behind_hosts(starts: Ints, sys_flags: Ints) -> tuple[Ints, Ints]:
    if not (sys_flags & HOST_BITS).any():
        return starts + _AFTER_BORN, starts + _AFTER_STORE
    born_extra = np.where(sys_flags & BORN_HOST_V6, LONGER_HOST_BYTES, 0)
    store_extra = np.where(sys_flags & STORE_HOST_V6, LONGER_HOST_BYTES, 0)
    return starts + _AFTER_BORN + born_extra, starts + _AFTER_STORE + born_extra + store_extra
