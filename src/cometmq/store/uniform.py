"""Batches whose messages are built alike, packed as one matrix.

A producer that batches mostly sends messages of one shape: equal body length, the same properties
in the same order, values of equal length. Their records then differ in a few columns only, and one
numpy operation a column does what a Python loop does in four times the time. Whatever is not
exactly so is refused here and goes the general way (batching.py), which gives the same bytes. Only
``vectors.py`` and who asked it import this module.
"""

from __future__ import annotations

from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from cometmq.core.errors import MessageIllegal
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.record import CRC_MASK, MAGIC_V1, MAX_PROPERTIES_BYTES, head_of
from cometmq.store.batching import UNIFORM_ROWS, Shared, flags_of

if TYPE_CHECKING:
    from cometmq.store.consumequeue import ConsumeQueue

Bytes = npt.NDArray[np.uint8]

_ENTRY_BYTES = 20
_READ_NAMES = (props.UNIQ_KEY.encode(), props.KEYS.encode(), props.TAGS.encode())


class UniformBatch(NamedTuple):
    """A batch as a matrix: one row a message, as it came; ``more`` follows its properties."""

    raw: bytes
    matrix: Bytes
    body_bytes: int
    more: bytes
    sizes: list[int]
    codes: list[int]
    keys: list[tuple[str, ...]]

    def pack(
        self, queue: ConsumeQueue, shared: Shared, phys: int, now_ms: int
    ) -> list[bytes | memoryview]:
        """See :class:`cometmq.store.batching.Batch`."""
        try:
            return [_pack(self, queue, shared, phys, now_ms)]
        except StructError as error:
            raise MessageIllegal(f"a number does not fit its field: {error}") from None


def recognise(raw: bytes, queue: ConsumeQueue, shared: Shared) -> UniformBatch | None:
    """The batch as a matrix; None when its messages are not all built alike."""
    size = int.from_bytes(raw[:4], "big")
    if size < _ENTRY_BYTES + 2 or len(raw) % size or len(raw) < UNIFORM_ROWS * size:
        return None
    matrix = np.frombuffer(raw, np.uint8).reshape(-1, size)
    body_bytes = int.from_bytes(raw[16:20], "big")
    own_at = _ENTRY_BYTES + body_bytes + 2
    own_bytes = size - own_at
    if own_bytes < 0 or int.from_bytes(raw[own_at - 2 : own_at], "big") != own_bytes:
        return None
    if not _same_columns(matrix, raw, own_at):
        return None
    own = raw[own_at:size]
    more = shared.properties
    if own and more and not own.endswith(b"\x02"):
        more = b"\x02" + more
    if own_bytes + len(more) > MAX_PROPERTIES_BYTES or any(name in more for name in _READ_NAMES):
        return None
    found = _keys_and_tag(matrix, raw, own, own_at)
    if found is None:
        return None
    keys, code = found
    fixed = head_of(flags_of(shared)).size + len(queue.topic_tail) + 2
    count = len(matrix)
    sizes = [fixed + body_bytes + own_bytes + len(more)] * count
    return UniformBatch(raw, matrix, body_bytes, more, sizes, [code] * count, keys)


def _same_columns(matrix: Bytes, raw: bytes, own_at: int) -> bool:
    """Whether lengths, separators and property names are the same in every row."""
    lengths = (0, 1, 2, 3, 16, 17, 18, 19, own_at - 2, own_at - 1)
    own = raw[own_at : matrix.shape[1]]
    names: list[int] = []
    position = own_at
    for pair in own.split(b"\x02"):
        cut = pair.find(b"\x01")
        if cut <= 0 or cut == len(pair) - 1:
            return False
        names += range(position, position + cut)
        position += len(pair) + 1
    fixed = matrix[:, (*lengths, *names)]
    separators = matrix[:, own_at:] <= 2
    return bool((fixed == fixed[0]).all() and (separators == separators[0]).all())


def _keys_and_tag(
    matrix: Bytes, raw: bytes, own: bytes, own_at: int
) -> tuple[list[tuple[str, ...]], int] | None:
    keys: list[tuple[str, ...]] = [()] * len(matrix)
    code = 0
    seen: set[bytes] = set()
    position = own_at
    for pair in own.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        start, stop = position + len(name) + 1, position + len(pair)
        position = stop + 1
        if name not in _READ_NAMES:
            continue
        if name in seen or name == b"KEYS":
            return None
        seen.add(name)
        columns = matrix[:, start:stop]
        if name == b"TAGS":
            if not (columns == columns[0]).all():
                return None
            code = tag_code(value.decode("utf-8", "replace"))
        else:
            joined = columns.tobytes()
            if not joined.isascii():
                return None
            width, text = len(value), joined.decode()
            keys = [(text[at : at + width],) for at in range(0, len(text), width)]
    return keys, code


def _pack(
    batch: UniformBatch, queue: ConsumeQueue, shared: Shared, phys: int, now_ms: int
) -> memoryview:
    matrix, body_bytes, size = batch.matrix, batch.body_bytes, batch.sizes[0]
    count, entry_bytes = matrix.shape
    sys_flag = flags_of(shared)
    head = head_of(sys_flag)
    template = head.pack(
        size, MAGIC_V1, 0, queue.queue_id, 0, 0, 0, sys_flag, shared.born_ms, shared.born_host,
        now_ms, shared.store_host, shared.reconsume_times, 0, body_bytes,
    )  # fmt: skip
    raw = batch.raw
    crcs = [
        crc32(raw[at : at + body_bytes]) & CRC_MASK
        for at in range(_ENTRY_BYTES, len(raw), entry_bytes)
    ]
    own_at = _ENTRY_BYTES + body_bytes + 2
    own_bytes = entry_bytes - own_at
    first = queue.next_offset
    out = np.empty((count, size), np.uint8)
    out[:, : head.size] = np.frombuffer(template, np.uint8)
    out[:, 8:12] = np.array(crcs, ">u4").view(np.uint8).reshape(count, 4)
    out[:, 16:20] = matrix[:, 12:16]
    out[:, 20:28] = _big_endian(first, 1, count)
    out[:, 28:36] = _big_endian(phys, size, count)
    position = head.size + body_bytes
    out[:, head.size : position] = matrix[:, _ENTRY_BYTES : _ENTRY_BYTES + body_bytes]
    middle = queue.topic_tail + (own_bytes + len(batch.more)).to_bytes(2, "big")
    out[:, position : position + len(middle)] = np.frombuffer(middle, np.uint8)
    position += len(middle)
    out[:, position : position + own_bytes] = matrix[:, own_at:]
    if batch.more:
        out[:, position + own_bytes :] = np.frombuffer(batch.more, np.uint8)
    return out.reshape(-1).data


def _big_endian(first: int, step: int, count: int) -> Bytes:
    values = np.arange(first, first + step * count, step, dtype=np.int64)
    return values.byteswap().view(np.uint8).reshape(count, 8)
