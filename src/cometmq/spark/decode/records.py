"""Stored records to Arrow, a block at a time: one decoder for whatever holds records.

A block is whole records (see message/record.py) in a buffer of at most 2 GiB. Fixed fields are
gathered through strided views, variable ones by an Arrow ``take`` over interleaved start and end
offsets, so no Python runs per record. Only the columns asked for are touched. Property texts are
split in properties.py; compressed bodies are unpacked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.message.columns import Columns, read_columns
from cometmq.message.compression import decompress
from cometmq.message.flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from cometmq.message.ids import encode_offset_id, unpack_host
from cometmq.message.record import BORN_HOST_POSITION, HOST_BYTES, LONGER_HOST_BYTES, BadRecord
from cometmq.message.walk import all_places
from cometmq.spark.decode.alike import WORD_BYTES, all_equal, distinct
from cometmq.spark.decode.gather import slices, text
from cometmq.spark.decode.properties import PropertyColumns, parse
from cometmq.spark.schema import CORRUPT, arrow_schema

if TYPE_CHECKING:
    from cometmq.message.walk import Flags, Ints

_OF_PROPERTIES: Final = frozenset({"keys", "tags", "msg_id", "properties"})
_MS_MAX: Final = (2**63 - 1) // 1000
"""The furthest milliseconds that microseconds can say; senders make their times up."""
_TIMES: Final = {"born_timestamp": "born_ms", "store_timestamp": "store_ms"}
_TIME_BYTES: Final = 8
_UINT64: Final = 2**64 - 1


class Block:
    """The records of a block whose rows can be chosen before anything is decoded."""

    def __init__(self, data: bytes, broker_name: str = "", starts: Ints | None = None) -> None:
        """The records that begin at ``starts``, ascending; None for all of a block that holds
        nothing but records. Checks every length in them. Raises BadRecord."""
        self._data = data
        self._broker_name = broker_name
        starts = all_places(data) if starts is None else starts
        self._fields, problem = read_columns(np.frombuffer(data, np.uint8), starts)
        if problem:
            raise BadRecord(int(starts[len(self._fields)]), problem)
        self._properties: PropertyColumns | None = None

    def __len__(self) -> int:
        return len(self._fields)

    @property
    def fields(self) -> Columns:
        """Where everything stands."""
        return self._fields

    @property
    def broker_name(self) -> str:
        """The broker that the records are of."""
        return self._broker_name

    @property
    def queue_offsets(self) -> Ints:
        """The queue offset of every row."""
        return self._fields.number("queue_offset")

    def choose(self, rows: Flags) -> None:
        """Keep only the rows that are true."""
        if not rows.all():
            self._fields = self._fields.rows(rows)
            self._properties = None

    def topics(self) -> pa.Array:
        """The topic of every row."""
        name = self._only_topic()
        if name is not None:
            return pa.repeat(pa.scalar(name, pa.string()), len(self))
        return text(slices(self._data, self._fields.topic_starts, self._fields.topic_ends))

    def topic_codes(self) -> tuple[list[str], Ints]:
        """The different topics, and which of them each row has."""
        name = self._only_topic()
        if name is not None:
            return [name], np.zeros(len(self), np.int64)
        encoded = self.topics().dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)

    def _only_topic(self) -> str | None:
        """The topic of all rows, when they surely have the same."""
        fields = self._fields
        at, ends = fields.topic_starts, fields.topic_ends
        # Words are compared, so some bytes must follow the last topic.
        if not len(fields) or ends[-1] + WORD_BYTES > len(self._data):
            return None
        if not all_equal(fields.raw, at, ends - at):
            return None
        return self._data[int(at[0]) : int(ends[0])].decode("utf-8", "replace")

    def tags(self) -> pa.Array:
        """The tag of every row, null without one."""
        return self._parsed().named("TAGS")

    def batches(self, names: tuple[str, ...], rows_max: int) -> Iterator[pa.RecordBatch]:
        """The rows in these columns, at most ``rows_max`` a batch.

        Raises BadRecord when a body cannot be unpacked.
        """
        if not len(self):
            return
        arrays = [self.column(name) for name in names]
        whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
        for start in range(0, len(self), rows_max):
            yield whole.slice(start, rows_max)

    # -------------------------------------------------------------------------------- columns

    def column(self, name: str) -> pa.Array:
        """One column, in exactly the Arrow type of the schema; no row is corrupt, as far as a block
        knows. Raises BadRecord when a body cannot be unpacked."""
        kind = arrow_schema((name,)).field(0).type
        if pa.types.is_integer(kind):
            return pa.array(self._fields.number(name).astype(kind.to_pandas_dtype()), kind)
        if pa.types.is_timestamp(kind):
            inside = np.clip(self._fields.number(_TIMES[name]), -_MS_MAX, _MS_MAX)
            return pa.array(inside * 1000, pa.int64()).cast(kind)
        if name in _OF_PROPERTIES:
            return self._property_column(name)
        if name == "broker_name":
            return pa.repeat(pa.scalar(self._broker_name, pa.string()), len(self))
        return _OTHERS[name](self)

    def bodies(self) -> pa.Array:
        """The bodies, unpacked. Raises BadRecord."""
        bodies, problems = self.unpacked()
        for row, problem in problems.items():
            raise BadRecord(int(self._fields.starts[row]), problem)
        return bodies

    def unpacked(self) -> tuple[pa.Array, dict[int, str]]:
        """The bodies, null where one cannot be unpacked, and why not, by row."""
        fields = self._fields
        bodies = slices(self._data, fields.body_starts, fields.body_ends)
        packed = np.flatnonzero(fields.sys_flags & COMPRESSED)
        if not len(packed):
            return bodies, {}
        problems: dict[int, str] = {}
        values: list[bytes | None] = bodies.to_pylist()
        for row in packed.tolist():
            try:
                values[row] = decompress(values[row] or b"", int(fields.sys_flags[row]))
            except BadRecord as error:
                values[row] = None
                problems[row] = error.problem
        return pa.array(values, pa.binary()), problems

    def born_hosts(self) -> pa.Array:
        """Addresses of the producers."""
        return self._hosts("born_host", self._fields.starts + BORN_HOST_POSITION, BORN_HOST_V6)

    def store_hosts(self) -> pa.Array:
        """Addresses of the brokers."""
        return self._hosts("store_host", self._fields.after_born + _TIME_BYTES, STORE_HOST_V6)

    def _hosts(self, name: str, at: Ints, longer: int) -> pa.Array:
        """Addresses as text. There are few different ones, so each is written once."""
        is_v6 = self._fields.sys_flags & longer != 0
        if is_v6.any():
            keys = [
                self._data[position : position + HOST_BYTES + LONGER_HOST_BYTES * long]
                for position, long in zip(at.tolist(), is_v6.tolist(), strict=True)
            ]
            return pa.array([address(key) for key in keys], pa.string())
        packed = self._fields.number(name)
        few = distinct(packed)
        if few is None:
            unique, index = np.unique(packed, return_inverse=True)
            few = unique.tolist(), index
        names = [address(value.to_bytes(8, "big", signed=True)) for value in few[0]]
        if len(names) == 1:
            return pa.repeat(pa.scalar(names[0], pa.string()), len(at))
        return pa.array(names, pa.string()).take(pa.array(few[1]))

    def _parsed(self) -> PropertyColumns:
        if self._properties is None:
            self._properties = parse(self._data, self._fields.properties_starts, self._fields.ends)
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
        fields = self._fields
        physical = fields.number("physical_offset")
        for row in np.flatnonzero(unique_keys.is_null().to_numpy(zero_copy_only=False)).tolist():
            host_at, stop = int(fields.after_born[row]) + _TIME_BYTES, int(fields.after_store[row])
            ids[row] = encode_offset_id(self._data[host_at:stop], int(physical[row]) & _UINT64)
        return pa.array(ids, pa.string())


_OTHERS: Final[dict[str, Callable[[Block], pa.Array]]] = {
    "topic": Block.topics,
    "body": Block.bodies,
    "born_host": Block.born_hosts,
    "store_host": Block.store_hosts,
    CORRUPT.name: lambda block: pa.nulls(len(block), pa.string()),
}


def address(packed: bytes) -> str:
    """``host:port`` of a packed address, ``[host]:port`` for IPv6."""
    host, port = unpack_host(packed)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
