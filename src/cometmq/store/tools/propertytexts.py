"""The property texts of many stored records at once, out of a map of their log file.

Where a record lies and what its head says comes from numpy, for hundreds of records at a time: the
processor waits for many of them at once, instead of for one after the other. Broker and looker are
two processes, and the broker may drop the file, so each record has to say of itself that it is the
one that its queue entry is of.
"""

from __future__ import annotations

from struct import error as StructError
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.filter.columns import CODEC, texts_of
from cometmq.message.record import (
    FIXED_BYTES,
    HEAD,
    HOST_BITS,
    MAGIC_POSITION,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_POSITION,
    POSITIONS,
    SYS_FLAG_POSITION,
    properties_of,
)
from cometmq.message.walk import Bytes, Ints, numbers, window
from cometmq.store.layout import QUEUE_ENTRY_COLUMNS

_ENTRY: Final = np.dtype(QUEUE_ENTRY_COLUMNS)
#: Of a record with IPv4 hosts. Behind the body stand the topic, with its length in one byte, and
#: the properties, with theirs in two.
_BODY_LENGTH_AT: Final = POSITIONS["body_bytes"]
_TOPIC_LENGTH_BYTES: Final = 1
_LENGTHS_BYTES: Final = 3
#: Stands between two texts, and in none that is UTF-8.
_PARTING: Final = b"\xff"


class _Places(NamedTuple):
    """Where the properties of records begin and end in a map."""

    starts: list[int]
    ends: list[int]


class _Records(NamedTuple):
    """Where records begin in a map, and their sizes."""

    starts: Ints
    sizes: Ints


class Gathering(NamedTuple):
    """Records one behind the other, and where each ends."""

    records: bytes
    ends: list[int]


class RecordMap:
    """A log file in memory: ``view`` is of its bytes, the first of them at physical offset
    ``base``."""

    __slots__ = ("_base", "_offsets", "_raw", "_view", "_words")

    def __init__(self, view: memoryview, base: int) -> None:
        self._view = view
        self._base = base
        self._raw: Bytes = np.frombuffer(view, np.uint8)
        self._words = window(self._raw, ">u4")
        self._offsets = window(self._raw, ">i8")

    def texts(self, entries: bytes) -> list[str] | None:
        """The property texts (filter/columns.py) of the records that queue entries are of; None
        when the file has not all of these records."""
        found = self._records(np.frombuffer(entries, _ENTRY))
        if found is None:
            return None
        starts, sizes = found
        places = self._plain(starts, sizes)
        view = self._view
        if places is None:
            return self._one_by_one(starts, sizes)
        pieces = [view[start:end] for start, end in zip(*places, strict=True)]
        texts = _PARTING.join(pieces).decode(CODEC).split(_PARTING.decode(CODEC))
        return texts if len(texts) == len(pieces) else texts_of(pieces)

    def gather(self, entries: bytes, matching: list[int], max_bytes: int) -> Gathering | None:
        """The records of those queue entries that have these numbers, the first ones that fit; None
        when the file has not all of them."""
        found = self._records(np.frombuffer(entries, _ENTRY)[matching])
        if found is None:
            return None
        starts, sizes = found
        ends = sizes.cumsum()
        fitting = int(ends.searchsorted(max_bytes, side="right"))
        view, stops = self._view, (starts + sizes)[:fitting].tolist()
        pieces = [view[start:stop] for start, stop in zip(starts.tolist(), stops, strict=False)]
        return Gathering(b"".join(pieces), ends[:fitting].tolist())

    def _records(self, entries: npt.NDArray[np.void]) -> _Records | None:
        """Where the records of queue entries are; None when the file has not all of them."""
        sizes, offsets = numbers(entries["size"]), numbers(entries["physical"])
        starts = offsets - self._base
        if starts.min() < 0 or sizes.min() < FIXED_BYTES:
            return None
        if (starts + sizes).max() > len(self._raw) or not self._are_there(starts, sizes, offsets):
            return None
        return _Records(starts, sizes)

    def _one_by_one(self, starts: Ints, sizes: Ints) -> list[str] | None:
        places = zip(starts.tolist(), sizes.tolist(), strict=True)
        try:
            return texts_of(properties_of(self._view, start, size) for start, size in places)
        except (StructError, IndexError):  # lengths that lead out of the file
            return None

    def _are_there(self, starts: Ints, sizes: Ints, offsets: Ints) -> bool:
        words = self._words
        magics = words[starts + MAGIC_POSITION]
        return (
            bool((words[starts] == sizes).all())
            and bool((self._offsets[starts + PHYSICAL_OFFSET_POSITION] == offsets).all())
            and bool(((magics == MAGIC_V1) | (magics == MAGIC_V2)).all())
        )

    def _plain(self, starts: Ints, sizes: Ints) -> _Places | None:
        """None when one is not of the layout that nearly all have: IPv4 hosts, a short topic."""
        words, ends = self._words, starts + sizes
        if (words[starts + MAGIC_POSITION] != MAGIC_V1).any():
            return None
        if (numbers(words[starts + SYS_FLAG_POSITION]) & HOST_BITS).any():
            return None
        topics = starts + HEAD.size + numbers(words[starts + _BODY_LENGTH_AT])
        if (topics + _TOPIC_LENGTH_BYTES > ends).any():
            return None
        properties = topics + self._raw[topics] + _LENGTHS_BYTES
        if (properties > ends).any():
            return None
        return _Places(properties.tolist(), ends.tolist())
