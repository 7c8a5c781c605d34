"""How long a broker takes to start on a large store: stopped, killed, and with nothing but its log.

    .venv/bin/python -m benchmarks.recovery [--gib 10] [--seconds 10] [--place DIRECTORY] [--java]

The store is filled through the broker with 1 KiB messages in four queues, and is evicted from the
page cache before each start. The starts: after a stop; after a kill while nothing is sent and all
is synced; after a kill while batches arrive, which leaves the most to check; and after a kill with
all notes of durable data removed (CometMQ only), so that recovery depends on the log alone.
``read_mib`` is what the process read from its device until it served, ``looked_at_mib`` the part of
the log that it checked. Prints one JSON line per broker.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.filling import BODY_BYTES, drop_from_memory, fill
from benchmarks.loading import build_load
from benchmarks.servers import Server, proc_numbers, report

QUEUES: Final = 4
TOPIC: Final = "history"
#: After this time without a send everything is synced: it exceeds every interval of thorough
#: flushes.
SETTLED_S: Final = 75
#: With a nearly full disk, the brokers would delete messages.
SETTINGS: Final = {"diskMaxUsedSpaceRatio": "98", "cleanFileForciblyEnable": "false"}
#: CometMQ's notes of durable data.
NOTES: Final = ("cometmq-positions.json", "cometmq-progress.json", "checkpoint")
_OPENED: Final = re.compile(r"store_opened .* start=(\d+) end=(\d+) records=(\d+)")


def start(server: Server) -> dict[str, float]:
    """Start on a store that is not in the page cache. Return the time until it serves, and what it
    read."""
    drop_from_memory(server.home / "store")
    begin = time.perf_counter()
    server.start()
    found: dict[str, float] = {"seconds": round(time.perf_counter() - begin, 2)}
    found["read_mib"] = proc_numbers(server.pid, "io")["read_bytes"] >> 20
    log_path = server.home / "store.log"
    if server.name == "cometmq":
        begun, end, records = _OPENED.findall(log_path.read_text())[-1]
        found |= {"looked_at_mib": (int(end) - int(begun)) >> 20, "records": int(records)}
    return found


def kill_under_load(server: Server, load_path: Path, seconds: float) -> None:
    """Kill the broker while batches arrive."""
    words = (load_path, "batch", server.port, TOPIC, QUEUES, 4, 4, BODY_BYTES, 600, 32)
    load = subprocess.Popen([str(word) for word in words], stdout=-1, stderr=-1)
    time.sleep(seconds)
    server.kill()
    load.communicate()


def measure(server: Server, load_path: Path, gib: float, seconds: float) -> dict[str, object]:
    """Measure all starts of one broker. Raises BenchmarkFailed, AnchorFailed."""
    store = server.home / "store"
    line: dict[str, object] = {"broker": server.name}
    try:
        server.start()
        fill(server, load_path, TOPIC, QUEUES, int(gib * 2**30))
        line["log_gib"] = round(sum(p.stat().st_size for p in store.glob("commitlog/*")) / 2**30, 1)
        server.stop()
        line["stopped"] = start(server)
        time.sleep(SETTLED_S)
        server.kill()
        line["killed_idle"] = start(server)
        kill_under_load(server, load_path, seconds)
        line["killed_under_load"] = start(server)
        if server.name == "cometmq":
            kill_under_load(server, load_path, seconds)
            for name in NOTES:
                (store / name).unlink(missing_ok=True)
            line["killed_without_notes"] = start(server)
        server.stop()
        return line
    finally:
        server.kill()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load before a kill")
    parser.add_argument("--place", help="the directory for the stores; the temporary one")
    parser.add_argument("--java", action="store_true", help="the Java broker, too")
    words = parser.parse_args()
    names = ["cometmq", "java"] if words.java else ["cometmq"]
    with tempfile.TemporaryDirectory(prefix="cometmq-recovery-", dir=words.place) as place:
        load_path = build_load(Path(place))
        for name in names:
            made = partial(measure, load_path=load_path, gib=words.gib, seconds=words.seconds)
            report(name, Path(place, name), made, SETTINGS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
