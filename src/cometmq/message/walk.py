"""Search for the start of a record in raw bytes of the log, after damage or inside a file.

From there, ``walk`` in ``speedups`` goes from record to record.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from cometmq.message.record import (
    FIXED_BYTES,
    MAGIC_BLANK,
    MAGIC_START,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    head_part,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

#: Bytes of the size field, which precedes the magic number.
_SIZE_BYTES = 4
_PLACE = head_part("size_bytes", "magic", "physical_offset")


def window(data: Bytes, dtype: str) -> npt.NDArray[np.generic]:
    """Return a view of ``data`` whose element n is the ``dtype`` value at byte n."""
    kind = np.dtype(dtype)
    count = max(0, len(data) - kind.itemsize + 1)
    first = np.ndarray((min(count, 1),), kind, data.data)
    return as_strided(first, shape=(count,), strides=(1,), writeable=False)


def numbers(found: npt.NDArray[np.generic]) -> Ints:
    """Return numbers of any type and byte order as int64."""
    return found.astype(np.int64)


def next_record(data: bytes | bytearray, base: int | None, start: int, end: int) -> int:
    """Return the first position from ``start`` on where a record may begin (:func:`problem_at`).

    Return -1 if there is none before ``end``. ``base`` is the physical offset of the first byte.
    """
    at = start + _SIZE_BYTES
    while True:
        at = data.find(MAGIC_START, at, end)
        place = at - _SIZE_BYTES
        if at < 0 or place + FIXED_BYTES > end:
            return -1
        if not problem_at(data, place, base):
            return place
        at += 1


def problem_at(data: bytes | bytearray | memoryview, place: int, base: int | None) -> str:
    """Return the reason why no record begins at ``place``, or an empty text if one may.

    At least FIXED_BYTES must follow. Without ``base``, the physical offset is not compared.
    """
    size, magic, offset = _PLACE.unpack_from(data, place)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic is {magic:#010x}"
    if size < FIXED_BYTES:
        return f"size is {size}"
    if base is not None and offset != base + place:
        return f"its physical offset field is {offset}"
    return ""


def is_blank(data: bytes | bytearray | memoryview, place: int, room: int) -> bool:
    """Return whether the blank that ends a log file is at ``place``, ``room`` bytes before its
    end.
    """
    if len(data) - place < PREFIX.size:
        return False
    size, magic = PREFIX.unpack_from(data, place)
    return bool(magic == MAGIC_BLANK and size == room)
