"""Stored records to Arrow, a block at a time: one decoder for whatever holds records.

A block is whole records one after another (see message/record.py), at most 2 GiB. Fixed fields are
gathered through strided views, variable ones by an Arrow ``take`` over interleaved start and end
offsets, so no Python runs per record except the walk over the sizes. Only the columns asked for are
touched. Property texts are split in properties.py; compressed bodies are unpacked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.message.compression import decompress
from cometmq.message.flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from cometmq.message.ids import encode_offset_id, unpack_host
from cometmq.message.record import FIXED_BYTES, MAGIC_V1, MAGIC_V2, PREFIX, BadRecord
from cometmq.spark.decode.gather import slices, text
from cometmq.spark.decode.properties import PropertyColumns, parse
from cometmq.spark.schema import arrow_schema

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_V6_EXTRA: Final = 12
_OF_PROPERTIES: Final = frozenset({"keys", "tags", "msg_id", "properties"})
_PREFIX_BYTES: Final = PREFIX.size
_MS_MAX: Final = (2**63 - 1) // 1000
"""The furthest milliseconds that microseconds can say; senders make their times up."""
_UINT64: Final = 2**64 - 1


def walk(block: bytes) -> Int64s:
    """Where each record of a block begins.

    Raises BadRecord where the bytes are no record, or the last record is cut off.
    """
    positions: list[int] = []
    append, unpack = positions.append, PREFIX.unpack_from
    position, end = 0, len(block)
    while position < end:
        if end - position < _PREFIX_BYTES:
            raise BadRecord(position, f"{end - position} bytes left over")
        size, magic = unpack(block, position)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            raise BadRecord(position, f"magic is {magic:#010x}")
        if size < FIXED_BYTES or size > end - position:
            raise BadRecord(position, f"size is {size}, {end - position} bytes are there")
        append(position)
        position += size
    return np.array(positions, np.int64)


class Block:
    """The records of a block whose rows can be chosen before anything is decoded."""

    def __init__(self, data: bytes, broker_name: str = "") -> None:
        """Walk ``data`` and check every length in it. Raises BadRecord."""
        positions = walk(data)
        self._data = data
        self._bytes: Bytes = np.frombuffer(data, np.uint8)
        self._broker_name = broker_name
        self._set(positions)
        self._check()

    def __len__(self) -> int:
        return len(self._at)

    @property
    def queue_offsets(self) -> Int64s:
        """The queue offset of every row."""
        return self._number("queue_offset")

    def choose(self, rows: Flags) -> None:
        """Keep only the rows that are true."""
        if not rows.all():
            self._set(self._at[rows])

    def tags(self) -> pa.Array:
        """The tag of every row, null without one."""
        return self._parsed().named("TAGS")

    def batches(self, names: tuple[str, ...], rows_max: int) -> Iterator[pa.RecordBatch]:
        """The rows in these columns, at most ``rows_max`` a batch.

        Raises BadRecord when a body cannot be unpacked.
        """
        if not len(self):
            return
        arrays = [self._column(name) for name in names]
        whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
        for start in range(0, len(self), rows_max):
            yield whole.slice(start, rows_max)

    # ------------------------------------------------------------------------------ positions

    def _set(self, at: Int64s) -> None:
        self._at = at
        sys_flag = self._gather(at + 36, ">i4")
        born_extra = np.where(sys_flag & BORN_HOST_V6, _V6_EXTRA, 0)
        store_extra = np.where(sys_flag & STORE_HOST_V6, _V6_EXTRA, 0)
        self._properties: PropertyColumns | None = None
        self._sys_flag = sys_flag
        self._after_born = at + 56 + born_extra
        self._after_store = self._after_born + 16 + store_extra
        self._size = self._gather(at, ">i4")
        self._body_at = self._after_store + 16
        self._fits = self._body_at + 3 <= at + self._size
        # A record too short for its own hosts is refused by _check; until then read its front.
        length_at = np.where(self._fits, self._body_at - 4, at)
        self._body_end = self._body_at + self._gather(length_at, ">i4")

    def _check(self) -> None:
        """Lengths of a record must add up to its size; so nothing below can read outside."""
        stop = self._at + self._size
        is_v2 = self._gather(self._at + 4, ">u4") == MAGIC_V2
        self._refuse(~self._fits, "its hosts alone need more than its size")
        length_bytes = np.where(is_v2, 2, 1)
        bad = (self._body_end < self._body_at) | (self._body_end + length_bytes + 2 > stop)
        self._refuse(bad, "its body length leaves it")
        topic_end = self._topic(is_v2)[1]
        self._refuse(topic_end + 2 > stop, "its topic length leaves it")
        properties_bytes = self._gather(topic_end, ">u2")
        self._refuse(topic_end + 2 + properties_bytes != stop, "its properties length leaves it")

    def _refuse(self, bad: Flags, problem: str) -> None:
        if bad.any():
            raise BadRecord(int(self._at[np.argmax(bad)]), problem)

    def _topic(self, is_v2: Flags | None = None) -> tuple[Int64s, Int64s]:
        if is_v2 is None:
            is_v2 = self._gather(self._at + 4, ">u4") == MAGIC_V2
        length = self._bytes[self._body_end].astype(np.int64)
        if is_v2.any():
            length = np.where(is_v2, length << 8 | self._bytes[self._body_end + 1], length)
        start = self._body_end + np.where(is_v2, 2, 1)
        return start, start + length

    # -------------------------------------------------------------------------------- columns

    def _gather(self, at: Int64s, kind: str) -> Int64s:
        """Big-endian integers at any byte positions."""
        dtype = np.dtype(kind)
        room = max(len(self._data) - dtype.itemsize + 1, 0)
        view: npt.NDArray[np.int64] = np.ndarray((room,), dtype, self._data, strides=(1,))
        return view[at].astype(np.int64)

    def _number(self, name: str) -> Int64s:
        if name == "sys_flag":
            return self._sys_flag
        if name == "size_bytes":
            return self._size
        if name == "reconsume_times":
            return self._gather(self._after_store, ">i4")
        if name == "prepared_offset":
            return self._gather(self._after_store + 4, ">i8")
        if name == "store_timestamp":
            return self._gather(self._after_born, ">i8")
        position, kind = _FRONT[name]
        return self._gather(self._at + position, kind)

    def _column(self, name: str) -> pa.Array:
        """One column, in exactly the Arrow type of the schema."""
        kind = arrow_schema((name,)).field(0).type
        if pa.types.is_integer(kind):
            return pa.array(self._number(name).astype(kind.to_pandas_dtype()), kind)
        if pa.types.is_timestamp(kind):
            inside = np.clip(self._number(name), -_MS_MAX, _MS_MAX)
            return pa.array(inside * 1000, pa.int64()).cast(kind)
        if name in _OF_PROPERTIES:
            return self._property_column(name)
        if name == "broker_name":
            return pa.repeat(pa.scalar(self._broker_name, pa.string()), len(self))
        if name == "topic":
            return text(slices(self._data, *self._topic()))
        if name == "body":
            return self._bodies()
        if name == "born_host":
            return self._hosts(self._at + 48, self._sys_flag & BORN_HOST_V6 != 0)
        return self._hosts(self._after_born + 8, self._sys_flag & STORE_HOST_V6 != 0)

    def _bodies(self) -> pa.Array:
        bodies = slices(self._data, self._body_at, self._body_end)
        packed = np.flatnonzero(self._sys_flag & COMPRESSED)
        if not len(packed):
            return bodies
        values: list[bytes] = bodies.to_pylist()
        for row in packed.tolist():
            if values[row]:
                values[row] = self._unpack(values[row], row)
        return pa.array(values, pa.binary())

    def _unpack(self, body: bytes, row: int) -> bytes:
        try:
            return decompress(body, int(self._sys_flag[row]))
        except BadRecord as error:
            where = f"queue offset {int(self.queue_offsets[row])}"
            problem = f"{where}: {error.problem}; leave `body` out of the schema to read past it"
            raise BadRecord(int(self._at[row]), problem) from None

    def _hosts(self, at: Int64s, is_v6: Flags) -> pa.Array:
        """Addresses as text. There are few different ones, so each is written once."""
        v4 = self._gather(np.where(is_v6, 0, at), ">i8")
        if is_v6.any():
            keys = [
                self._data[position : position + (20 if long else 8)]
                for position, long in zip(at.tolist(), is_v6.tolist(), strict=True)
            ]
            return pa.array([address(key) for key in keys], pa.string())
        unique, index = np.unique(v4, return_inverse=True)
        names = [address(int(value).to_bytes(8, "big", signed=True)) for value in unique]
        return pa.array(names, pa.string()).take(pa.array(index))

    def _parsed(self) -> PropertyColumns:
        if self._properties is None:
            topic_end = self._topic()[1]
            self._properties = parse(self._data, topic_end + 2, self._at + self._size)
        return self._properties

    def _property_column(self, name: str) -> pa.Array:
        parsed = self._parsed()
        if name == "properties":
            return parsed.maps()
        if name == "msg_id":
            return self._message_ids(parsed.named("UNIQ_KEY"))
        return parsed.named("KEYS" if name == "keys" else "TAGS")

    def _message_ids(self, unique_keys: pa.Array) -> pa.Array:
        if not unique_keys.null_count:
            return unique_keys
        ids: list[str | None] = unique_keys.to_pylist()
        physical = self._number("physical_offset")
        for row in np.flatnonzero(unique_keys.is_null().to_numpy(zero_copy_only=False)).tolist():
            start = int(self._after_born[row]) + 8
            host = self._data[start : int(self._after_store[row])]
            ids[row] = encode_offset_id(host, int(physical[row]) & _UINT64)
        return pa.array(ids, pa.string())


_FRONT: Final = {
    "body_crc": (8, ">i4"),
    "queue_id": (12, ">i4"),
    "flag": (16, ">i4"),
    "queue_offset": (20, ">i8"),
    "physical_offset": (28, ">i8"),
    "born_timestamp": (40, ">i8"),
}
"""Fields that stand at the same place in every record."""


def address(packed: bytes) -> str:
    """``host:port`` of a packed address, ``[host]:port`` for IPv6."""
    host, port = unpack_host(packed)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
