"""How fast stored records become Arrow columns, beside a plain Python loop over the same bytes.

Records of one topic with 256 B bodies (or ``--body`` bytes), four properties and a key each, in
blocks as a task decodes them. Every case walks the block and makes the columns; ``plain`` makes all
columns too, but message by message (what both make is compared). Processor seconds of one core, the
best of several rounds that alternate in one run. One JSON line a case: messages a second, and how
many times the plain loop.
Run: ``.venv/bin/python -m benchmarks.spark_decode [--body 256] [--messages 200000] [--rounds 5]``
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from cometmq.message import properties as props
from cometmq.message.ids import encode_offset_id, pack_host, unpack_host
from cometmq.message.record import Record, iter_decode, pack
from cometmq.spark.decode import Block
from cometmq.spark.schema import NAMES, arrow_schema
from cometmq.spark.workermemory import keep_loaded

BLOCK_BYTES: Final = 2 << 20
BATCH_ROWS: Final = 20_000
HOST: Final = pack_host("127.0.0.1", 10911)
HEAD: Final = (
    "queue_id", "queue_offset", "physical_offset", "sys_flag", "born_timestamp", "store_timestamp",
)  # fmt: skip
TEN: Final = (
    "topic", "queue_id", "queue_offset", "msg_id", "keys", "tags", "body", "born_timestamp",
    "store_timestamp", "reconsume_times",
)  # fmt: skip
CASES: Final = {
    "all columns": NAMES,
    "without the map": tuple(name for name in NAMES if name != "properties"),
    "ten columns": TEN,
    "head only": HEAD,
    "body only": ("body",),
}


def blocks(messages: int, body_bytes: int) -> list[bytes]:
    """Return consecutive records of one log, split into blocks."""
    chance = random.Random(6)
    found: list[bytes] = []
    block: list[bytes] = []
    size = position = 0
    for number in range(messages):
        text = props.encode(
            {
                props.UNIQ_KEY: f"{chance.getrandbits(128):032X}",
                props.KEYS: f"order-{number:09d}",
                props.TAGS: f"tag{number % 8}",
                props.CLUSTER: "DefaultCluster",
            }
        )
        record = Record(
            0, 0, number % 8, 0, number // 8, position, 0, 1_772_600_000_000 + number, HOST,
            1_772_600_000_003 + number, HOST, 0, 0, chance.randbytes(body_bytes), "orders", text,
        )  # fmt: skip
        packed = pack(record)
        if size + len(packed) > BLOCK_BYTES:
            found.append(b"".join(block))
            block, size = [], 0
        block.append(packed)
        size += len(packed)
        position += len(packed)
    return [*found, b"".join(block)]


def vectorised(names: tuple[str, ...]) -> Callable[[bytes], int]:
    """Return a function that decodes a block into these columns and returns the number of rows."""

    def decode(block: bytes) -> int:
        return sum(batch.num_rows for batch in Block(block, "broker-a").batches(names, BATCH_ROWS))

    return decode


def plain(block: bytes) -> pa.RecordBatch:
    """Return all columns of a block, decoded message by message."""
    rows: list[tuple[object, ...]] = []
    for record in iter_decode(block):
        found = props.decode(record.properties)
        unique = found.get(props.UNIQ_KEY)
        row = (
            record.topic, "broker-a", record.queue_id, record.queue_offset,
            record.physical_offset,
            unique or encode_offset_id(record.store_host, record.physical_offset),
            found.get(props.KEYS), found.get(props.TAGS), record.body, list(found.items()),
            record.born_ms * 1000, address(record.born_host), record.store_ms * 1000,
            address(record.store_host), record.sys_flag, record.flag, record.reconsume_times,
            signed(record.body_crc), record.prepared_offset, record.size_bytes,
        )  # fmt: skip
        rows.append(row)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, arrow_schema(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema())


def address(packed: bytes) -> str:
    """Return ``host:port`` of an IPv4 address."""
    host, port = unpack_host(packed)
    return f"{host}:{port}"


def signed(crc: int) -> int:
    """Return the same 32 bits as a signed number, Spark's INT."""
    return (crc ^ 1 << 31) - (1 << 31)


def timed(work: Callable[[bytes], int], data: list[bytes], messages: int) -> float:
    """Return messages per second of processor time."""
    begun = time.process_time()
    assert sum(map(work, data)) == messages
    return messages / (time.process_time() - begun)


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body", type=int, default=256, metavar="BYTES")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    keep_loaded()
    data = blocks(given.messages, given.body)
    few = data[: max(1, len(data) // 10)]
    for block in few:
        assert [plain(block)] == list(Block(block, "broker-a").batches(NAMES, given.messages))
    few_messages = sum(plain(block).num_rows for block in few)
    slow = 0.0
    best = dict.fromkeys(CASES, 0.0)
    for _ in range(given.rounds):
        slow = max(slow, timed(lambda block: plain(block).num_rows, few, few_messages))
        for case, names in CASES.items():
            best[case] = max(best[case], timed(vectorised(names), data, given.messages))
    record_bytes = sum(map(len, data)) / given.messages
    for case, rate in {"plain": slow, **best}.items():
        fact = {
            "case": case,
            "body_bytes": given.body,
            "messages_per_s": round(rate),
            "mb_per_s": round(rate * record_bytes / 1e6),
            "times_plain": round(rate / slow, 1),
        }
        print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    main()
