"""What producers notice of a consumer that replays what is no longer in memory.

    .venv/bin/python -m benchmarks.cold_replay [--rounds 3] [--seconds 10] [--gib 1] [--no-java]

Each broker gets topics of a GiB each, one per round, then more than three log files of other
messages, which a Java broker reads at its start. CometMQ seals its full files, which reads them.
Then the broker is stopped, the log files are evicted from the page cache, and the broker is started
again. Rounds follow: producers alone, and producers beside a consumer that replays a topic for the
first time. A broker treats as cold what is more than 1 % of the machine's memory before the end.
``read_bytes`` of its process shows that the data was cold: it must grow by the size of the replay.
Prints one JSON line per broker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.filling import BODY_BYTES, RECORD_BYTES, drop_from_memory, fill, wait_for_seals
from benchmarks.loading import BenchmarkFailed, build_load
from benchmarks.servers import Server, proc_numbers, report

QUEUES: Final = 4
PRODUCERS: Final = 4
BEHIND_BYTES: Final = (3 << 30) + (512 << 20)
SETTINGS: Final = {
    "accessMessageInMemoryMaxRatio": "1",
    # With a nearly full disk, the brokers would delete the messages to be replayed.
    "diskMaxUsedSpaceRatio": "98",
    "cleanFileForciblyEnable": "false",
}
HEAD_START_S: Final = 1.0


class Replay:
    """The measurements of one broker."""

    def __init__(self, server: Server, load_path: Path, seconds: float) -> None:
        self._server = server
        self._load_path = load_path
        self._seconds = seconds

    def words(self, kind: str, topic: str, *more: object) -> list[str]:
        """Return a command line of the load generator."""
        words = (self._load_path, kind, self._server.port, topic, QUEUES, *more)
        return [str(word) for word in words]

    def produce(self) -> dict[str, float]:
        """Measure the latencies of a few producers with one send in flight each."""
        words = self.words("send", "live", PRODUCERS, 1, BODY_BYTES, self._seconds)
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        if found["errors"]:
            raise BenchmarkFailed(f"{self._server.name}: {found['errors']} errors")
        return found

    def round(self, topic: str) -> dict[str, float]:
        """Measure producers alone, then beside a replay."""
        alone = self.produce()
        before = proc_numbers(self._server.pid, "io")["read_bytes"]
        words = self.words("pull", topic, QUEUES, 32, self._seconds + 2 * HEAD_START_S)
        replay = subprocess.Popen(words, stdout=subprocess.PIPE)
        time.sleep(HEAD_START_S)
        beside = self.produce()
        output, _ = replay.communicate()
        read_bytes = proc_numbers(self._server.pid, "io")["read_bytes"] - before
        replayed = json.loads(output)
        if replayed["errors"] or not replayed["messages_per_s"]:
            raise BenchmarkFailed(f"{self._server.name}: nothing replayed, {replayed}")
        # The load generator does not count its first fifth.
        replayed_bytes = replayed["messages_per_s"] * RECORD_BYTES * self._seconds
        return {
            "alone_p50_us": alone["p50_us"],
            "alone_p99_us": alone["p99_us"],
            "alone_per_s": alone["messages_per_s"],
            "beside_p50_us": beside["p50_us"],
            "beside_p99_us": beside["p99_us"],
            "beside_p999_us": beside["p999_us"],
            "beside_per_s": beside["messages_per_s"],
            "p99_ratio": round(beside["p99_us"] / alone["p99_us"], 2),
            "replayed_per_s": replayed["messages_per_s"],
            "replayed_mib": round(replayed_bytes / 2**20),
            "read_mib": round(read_bytes / 2**20),
        }


def measure(server: Server, load_path: Path, words: argparse.Namespace) -> dict[str, object]:
    """Measure one broker. Raises BenchmarkFailed, AnchorFailed."""
    replay = Replay(server, load_path, words.seconds)
    try:
        server.start()
        topics = [f"cold-{number}" for number in range(words.rounds)]
        sizes = {topic: int(words.gib * 2**30) for topic in topics}
        for topic, size_bytes in (sizes | {"behind": BEHIND_BYTES, "live": 1}).items():
            fill(server, load_path, topic, QUEUES, size_bytes)
        wait_for_seals(server)
        server.stop()
        drop_from_memory(server.home / "store")
        server.start()
        replay.produce()
        found = [replay.round(topic) for topic in topics]
        server.stop()
    finally:
        server.kill()
    medians = {key: statistics.median(line[key] for line in found) for key in found[0]}
    return {"broker": server.name, **medians, "rounds": found}


def main() -> int:
    """Run the measurements that the command line requests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--gib", type=float, default=1.0, help="what a round may replay")
    parser.add_argument("--no-java", action="store_true")
    words = parser.parse_args()
    names = ["cometmq"] if words.no_java else ["cometmq", "java"]
    with tempfile.TemporaryDirectory(prefix="cometmq-cold-") as place:
        load_path = build_load(Path(place))
        for name in names:
            made = partial(measure, load_path=load_path, words=words)
            report(name, Path(place, name), made, SETTINGS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
