"""The speed of ``store verify``, compared with reading the log and computing CRC-32 alone.

Writes a store of 1 KiB records and one of 128 B records through the store itself, seals it as the
broker does, and verifies it with one process: with its seals, with every record decoded, and
without its seals. The comparison reads the same log files in pieces of 1 MiB and computes one CRC
of each, the minimum of any check. All run in alternating rounds, measured as bytes of full log
files per second of processor time (the machine may be shared). Prints one JSON line per case.
Run: ``OPENBLAS_NUM_THREADS=1 .venv/bin/python -m benchmarks.store_verify [--gib 2] [--rounds 3]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from cometmq.core.clock import SystemClock
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.ids import pack_host
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.maintenance.checksumming import Sealer
from cometmq.store.recovery.opening import open_store
from cometmq.store.tools.verify import verify

HOST = pack_host("127.0.0.1", 10911)
QUEUES = 8
TURN = 64
PIECE_BYTES = 1 << 20
FILE_BYTES = 1 << 30


def write_store(root: Path, total_bytes: int, file_bytes: int, body_bytes: int) -> None:
    """Write a store of one topic with about ``total_bytes`` of log, full files sealed."""
    config = StoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=file_bytes)
    store = open_store(config, SystemClock())
    store.store_host = HOST
    body = os.urandom(body_bytes)
    queues = [store.queue("bench-topic", number) for number in range(QUEUES)]
    number = 0
    while store.written_offset < total_bytes:
        for _ in range(TURN):
            unique = f"{number * 0x9E3779B97F4A7C15 % (1 << 128):032X}"
            tag = f"tag{number % 4}"
            text = props.encode(
                {props.UNIQ_KEY: unique, props.TAGS: tag, props.CLUSTER: "DefaultCluster"}
            )
            store.append(
                queues[number % QUEUES],
                body,
                text,
                flag=0,
                sys_flag=0,
                born_ms=1_700_000_000_000,
                born_host=HOST,
                tag_code=tag_code(tag),
                keys=(unique,),
            )
            number += 1
        store.commit()
    store.flusher.sync_now()
    asyncio.run(Sealer(store.parts).seal_full_files())
    store.close()


def full_files(root: Path) -> list[Path]:
    """Return the log files before the active one."""
    return sorted((root / "commitlog").iterdir())[:-1]


def peer(root: Path) -> None:
    """Read the full log files and sum them."""
    buffer = bytearray(PIECE_BYTES)
    for path in full_files(root):
        handle = os.open(path, os.O_RDONLY)
        for offset in range(0, path.stat().st_size, PIECE_BYTES):
            os.preadv(handle, [buffer], offset)
            crc32(buffer)
        os.close(handle)


def by_seals(root: Path) -> None:
    """Verify in this process."""
    _verify(root, full=False)


def by_records(root: Path) -> None:
    """Verify in this process, with every record decoded."""
    _verify(root, full=True)


def without_seals(root: Path) -> None:
    """Verify like the store of a Java broker: sum the body of every record."""
    seals = root / "cometmq-seals"
    seals.rename(root / "aside")
    try:
        _verify(root, full=False)
    finally:
        (root / "aside").rename(seals)


def _verify(root: Path, *, full: bool) -> None:
    config = StoreConfig(store_path_root_dir=str(root))
    found = verify(config, ReadOnlyFiles(), processes=1, full=full)
    assert found.is_sound, found.findings
    assert found.records


def timed(work: Callable[[Path], None], root: Path) -> float:
    """Return gigabytes of full log files per second of processor time."""
    size = sum(path.stat().st_size for path in full_files(root))
    begun = time.process_time()
    work(root)
    return size / (time.process_time() - begun) / 1e9


def main() -> None:
    """Write the stores and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=int, default=2, help="full log files of each store")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="where the stores are, or are to stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for body_bytes in (1024, 128):
            root = (options.keep or Path(folder)) / str(body_bytes)
            if not root.exists():
                write_store(root, options.gib * FILE_BYTES, FILE_BYTES, body_bytes)
            cases = [peer, by_seals, by_records, without_seals]
            rates: dict[str, list[float]] = {case.__name__: [] for case in cases}
            timed(peer, root)
            for _ in range(options.rounds):
                for case in cases:
                    rates[case.__name__].append(timed(case, root))
            line = min(1.0, 0.7 * max(rates["peer"]))
            found = {f"{name}_gb_s": [round(r, 2) for r in each] for name, each in rates.items()}
            print(
                json.dumps(
                    {"body_bytes": body_bytes, "line_gb_s": round(line, 2)}
                    | found
                    | {"reached": max(rates["by_seals"]) >= line}
                )
            )


if __name__ == "__main__":
    main()
