"""What a record costs that comes as bytes of a log: copied by a slave, read by a start, verified.

    .venv/bin/python -m benchmarks.copies [--rounds 7] [--records 40000]

No sockets are used. The log of one store, with 128 B messages in eight queues, is passed to another
one as the connection to the master would pass it, in pieces of one turn each or of the size that a
slave reads at once. A store without its notes and queues is opened. A log file is summed up as a
seal and ``store verify`` do it. Prints one JSON line per case: microseconds of processor time per
record, the lower quartile of the rounds. To compare two versions of the program, run them
alternately.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.core.clock import SystemClock
from cometmq.message import properties as props
from cometmq.message.ids import UniqueKeys, pack_host
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.recovery.opening import open_store
from cometmq.store.replica import Replica
from cometmq.store.tools.sums import read_sums

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore

BODY = b"x" * 128
HOST = pack_host("127.0.0.1", 10911)
QUEUES = 8
#: Number of records that one turn of a busy master sends.
TURN = 32
#: Size of the pieces that a slave reads at once.
MUCH_BYTES = 256 << 10
#: Files that do not exist at the first start of a store with only a log.
DERIVED = ("consumequeue", "index", "cometmq-entries", "cometmq-positions.json", "checkpoint")
LEVELS = "1s 5s"


def config(root: Path) -> StoreConfig:
    """Return the configuration of a store whose log is one file."""
    return replace(
        StoreConfig(),
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=1 << 26,
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
    )


def filled(root: Path, records: int) -> MessageStore:
    """Return the filled store of a master."""
    store = open_store(config(root), SystemClock())
    store.store_host = HOST
    keys = UniqueKeys(b"\x7f\0\0\1", 1, 2)
    for number in range(records):
        key = keys.next(1_700_000_000_000)
        text = props.encode({"UNIQ_KEY": key, "CLUSTER": "DefaultCluster", "TAGS": "tag"})
        store.append(
            store.queue("copied", number % QUEUES), BODY, text, flag=0, sys_flag=0, born_ms=1,
            born_host=HOST, tag_code=1, keys=(key,),
        )  # fmt: skip
        if number % TURN == TURN - 1:
            store.commit()
    store.commit()
    return store


def log_bytes(store: MessageStore) -> bytes:
    """Return the whole log of a store."""
    view = store.log.view(0, store.written_offset)
    assert view is not None
    return bytes(view)


def copied(data: bytes, piece_bytes: int, root: Path) -> float:
    """Return the seconds that a slave takes for a log in pieces."""
    store = open_store(config(root), SystemClock())
    replica = Replica(store)
    view = memoryview(data)
    begin = time.process_time()
    for at in range(0, len(view), piece_bytes):
        replica.take(view[at : at + piece_bytes])
    took = time.process_time() - begin
    assert store.dispatched_offset == len(data)
    store.close()
    shutil.rmtree(root)
    return took


def scanned(master: Path, root: Path) -> float:
    """Return the seconds of a start with only the log."""
    shutil.copytree(master, root)
    for name in DERIVED:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (root / "abort").touch()
    begin = time.process_time()
    store = open_store(config(root), SystemClock())
    took = time.process_time() - begin
    store.close()
    shutil.rmtree(root)
    return took


def summed(master: Path) -> float:
    """Return the seconds of reading a log file for its seal."""
    path = next((master / "commitlog").iterdir())
    begin = time.process_time()
    read_sums(ReadOnlyFiles(), str(path), 0, path.stat().st_size, 0, LEVELS)
    return time.process_time() - begin


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=40_000)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-copies-") as place:
        master, other = Path(place, "master"), Path(place, "other")
        store = filled(master, words.records)
        data = log_bytes(store)
        store.close()
        turn_bytes = len(data) // words.records * TURN
        cases: dict[str, Callable[[], float]] = {
            "copied by turns": partial(copied, data, turn_bytes, other),
            "copied, much at once": partial(copied, data, MUCH_BYTES, other),
            "scanned": partial(scanned, master, other),
            "summed up": partial(summed, master),
        }
        for name, case in cases.items():
            took = sorted(case() for _ in range(words.rounds))[words.rounds // 4]
            microseconds = round(took * 1e6 / words.records, 3)
            print(json.dumps({"case": name, "us a record": microseconds}), flush=True)


if __name__ == "__main__":
    main()
