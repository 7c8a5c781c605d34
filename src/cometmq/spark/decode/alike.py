"""Texts at many places of a buffer, compared with one text: eight bytes of every row at a time.

Most blocks hold records that are much alike (one topic, one producer, the same property names), and
comparing is several times cheaper than making an Arrow array of texts to look at.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.message.walk import Bytes, Ints, window

WORD_BYTES: Final = 8
"""So many bytes must follow the last text in its buffer."""

_DISTINCT_MAX: Final = 32


def equal_to(raw: Bytes, at: Ints, lengths: Ints, wanted: bytes) -> npt.NDArray[np.bool_]:
    """Which of the texts that begin ``at`` are ``wanted``; WORD_BYTES follow the last."""
    found: npt.NDArray[np.bool_] = lengths == len(wanted)
    words: npt.NDArray[np.uint64] = window(raw, "<u8").view(np.uint64)
    for start in range(0, len(wanted), WORD_BYTES):
        if not found.any():
            break
        part = wanted[start : start + WORD_BYTES]
        mask = np.uint64((1 << 8 * len(part)) - 1)
        own = words[np.where(found, at + start, at) if not found.all() else at + start]
        found &= (own & mask) == np.uint64(int.from_bytes(part, "little"))
    return found


def all_equal(raw: Bytes, at: Ints, lengths: Ints) -> bool:
    """Whether all texts are the first one; WORD_BYTES follow the last."""
    first = bytes(raw[at[0] : at[0] + lengths[0]])
    return bool((lengths == len(first)).all() and equal_to(raw, at, lengths, first).all())


def distinct(values: Ints) -> tuple[list[int], Ints] | None:
    """The different values, and which of them each row has; None when there are many."""
    found: list[int] = []
    index = np.zeros(len(values), np.int64)
    if len(values) and (values == values[0]).all():
        return [int(values[0])], index
    rest = np.ones(len(values), np.bool_)
    while rest.any():
        if len(found) == _DISTINCT_MAX:
            return None
        value = int(values[np.argmax(rest)])
        same = values == value
        index[same] = len(found)
        found.append(value)
        rest &= ~same
    return found, index
