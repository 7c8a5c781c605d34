"""How fast ``store verify`` reads a store, beside reading the log and computing CRC-32 alone.

Writes a store of 1 KiB records and one of 128 B records through the store itself, seals it as the
broker does, and verifies it with one process. The peer reads the same log files in pieces of 1 MiB
and computes one CRC of each: what no check can do without. Both in alternating rounds of one run,
as bytes of log by second of processor time (the machine may be shared). One JSON line a case.
Run: ``.venv/bin/python -m benchmarks.store_verify [--gib 2] [--rounds 3]``
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from cometmq.core.clock import SystemClock
from cometmq.message import properties as props
from cometmq.message.ids import pack_host
from cometmq.store.config import StoreConfig
from cometmq.store.engine import MessageStore
from cometmq.store.sealing import Sealer

HOST = pack_host("127.0.0.1", 10911)
QUEUES = 8
TURN = 64


def write_store(root: Path, total_bytes: int, file_bytes: int, body_bytes: int) -> None:
    """A store of one topic with about ``total_bytes`` of log, full files sealed."""
    config = StoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=file_bytes)
    store = MessageStore.open(config, SystemClock())
    store.store_host = HOST
    body = os.urandom(body_bytes)
    queues = [store.queue("bench-topic", number) for number in range(QUEUES)]
    number = 0
    while store.written_offset < total_bytes:
        for _ in range(TURN):
            unique = f"{number * 0x9E3779B97F4A7C15 % (1 << 128):032X}"
            text = props.encode(
                {props.UNIQ_KEY: unique, props.TAGS: f"tag{number % 4}", props.CLUSTER: "default"}
            )
            store.append(
                queues[number % QUEUES],
                body,
                text,
                flag=0,
                sys_flag=0,
                born_ms=1_700_000_000_000,
                born_host=HOST,
                tag_code=TAG_CODES[number % 4],
                keys=(unique,),
            )
            number += 1
        store.commit()
    store.flusher.sync_now()
    asyncio.run(Sealer(store).seal_full_files())
    store.close()


TAG_CODES = [sum(ord(c) * 31 ** (3 - at) for at, c in enumerate(f"tag{n}")) for n in range(4)]
