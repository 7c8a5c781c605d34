"""A broker with 10 000 topics of 10 queues each, and the Java broker with as many as it copes with.

    .venv/bin/python -m benchmarks.many_queues [--topics 10000] [--rounds 3] [--seconds 5]
        [--java TOPICS] [--limit 120]

The Java broker is tried with ever fewer topics, until it stores a message in every queue within the
limit.

Measured for each broker: a start with only the table of topics, a message into every queue, sends
to all queues and to one topic in alternating rounds, one send in flight (its longest wait is the
longest stall of the broker), memory, a clean stop with a start after it, and a kill under load with
a start after it. The time of a rate includes the dispatch of all its messages. Prints one JSON line
per broker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.loading import BenchmarkFailed, build_load
from benchmarks.servers import Server, cpu_s, proc_numbers, report
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.tasks import Tasks
from cometmq.protocol.codes import RequestCode

QUEUES: Final = 10
WIDE, NARROW = "wide-", "narrow"
#: Numbers of topics to try with the Java broker, largest first.
JAVA_TOPICS: Final = (10_000, 5_000, 2_000, 1_000)
#: Time that a run of the load generator may take in addition to the load, seconds.
GRACE_S: Final = 20


def write_topics(store: Path, topics: int) -> None:
    """Write the broker's table of topics, so that their creation is not part of the measurement."""
    names = [f"{WIDE}{number}" for number in range(topics)]
    table = {
        name: {
            "order": False,
            "perm": 6,
            "readQueueNums": QUEUES,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": QUEUES,
        }
        for name in (NARROW, *names)
    }
    version = {"counter": 1, "timestamp": 1}
    (store / "config").mkdir(parents=True)
    text = json.dumps({"dataVersion": version, "topicConfigTable": table})
    (store / "config" / "topics.json").write_text(text)


class Measured:
    """The measurements of one broker."""

    def __init__(
        self, server: Server, load_path: Path, topics: int, seconds: float, limit_s: float
    ) -> None:
        self._server = server
        self._load_path = load_path
        self._topics = topics
        self._seconds = seconds
        self._limit_s = limit_s

    def load(
        self, topic: str, connections: int, window: int, seconds: float = 0
    ) -> dict[str, float]:
        """Run the load generator once. The time of `messages_per_s` includes dispatch.

        `cpu_us` is the broker's processor time per message, which other work on the machine affects
        less than the rate.
        """
        seconds = seconds or self._seconds
        before_s = cpu_s(self._server.pid)
        words = self._words(topic, connections, window, seconds)
        done = subprocess.run(words, stdout=-1, timeout=seconds + GRACE_S)
        if done.returncode:
            raise BenchmarkFailed(f"{self._server.name}: the load generator failed")
        found: dict[str, float] = json.loads(done.stdout)
        if found["errors"]:
            raise BenchmarkFailed(f"{self._server.name}: {found['errors']} errors")
        begin = time.perf_counter()
        while self._behind_bytes():
            if time.perf_counter() - begin > self._limit_s:
                raise BenchmarkFailed(f"{self._server.name}: dispatch is behind after the limit")
            time.sleep(0.005)
        found["messages_per_s"] *= seconds / (seconds + time.perf_counter() - begin)
        found["cpu_us"] = (cpu_s(self._server.pid) - before_s) * 1e6 / found["stored"]
        return found

    def _words(self, topic: str, connections: int, window: int, seconds: float) -> list[str]:
        topics = self._topics if topic == WIDE else 0
        words = (self._load_path, "send", self._server.port, topic, QUEUES)
        return [str(word) for word in (*words, connections, window, 128, seconds, topics)]

    def _behind_bytes(self) -> int:
        return run(_dispatch_behind_bytes(f"127.0.0.1:{self._server.port}"))

    def fill(self) -> float:
        """Send the first messages to every queue. Return messages per second.

        Raises BenchmarkFailed if that takes longer than the limit.
        """
        rates: list[float] = []
        stored, begin = 0, time.perf_counter()
        while stored < self._topics * QUEUES:
            if time.perf_counter() - begin > self._limit_s:
                raise BenchmarkFailed(f"{self._server.name}: {stored} messages within the limit")
            # Each run starts with the first queue again, so one run has to reach all queues.
            found = self.load(WIDE, 8, 64, self._seconds * 2 ** len(rates))
            stored = int(found["stored"])
            rates.append(found["messages_per_s"])
        return rates[0]

    def rounds(self, count: int) -> dict[str, object]:
        """Measure rates over all queues and over one topic, in alternating rounds."""
        rates: dict[str, list[float]] = {WIDE: [], NARROW: []}
        cpu_us: dict[str, list[float]] = {WIDE: [], NARROW: []}
        for number in range(count):
            for topic in (WIDE, NARROW) if number % 2 else (NARROW, WIDE):
                found = self.load(topic, 8, 64)
                rates[topic].append(round(found["messages_per_s"]))
                cpu_us[topic].append(round(found["cpu_us"], 1))
        quiet = self.load(WIDE, 1, 1, 3 * self._seconds)
        wide, narrow = (statistics.median(rates[topic]) for topic in (WIDE, NARROW))
        return {
            "all_queues_per_s": wide,
            "one_topic_per_s": narrow,
            "ratio": round(wide / narrow, 3),
            "rounds": rates,
            "cpu_us": cpu_us,
            "cpu_ratio": round(
                statistics.median(cpu_us[NARROW]) / statistics.median(cpu_us[WIDE]), 3
            ),
            "one_in_flight_p50_us": quiet["p50_us"],
            "one_in_flight_p999_us": quiet["p999_us"],
            "one_in_flight_max_ms": quiet["max_us"] / 1000,
        }

    def restarts(self) -> dict[str, float]:
        """Measure a stop, the start after it, and the start after a kill under load, in seconds."""
        found = {"stop_s": timed(self._server.stop), "start_s": timed(self._server.start)}
        load = subprocess.Popen(self._words(WIDE, 8, 64, 600), stdout=-1, stderr=-1)
        time.sleep(3 * self._seconds)
        self._server.kill()
        load.communicate()
        return found | {"start_after_kill_s": timed(self._server.start)}


async def _dispatch_behind_bytes(address: str) -> int:
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    try:
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await remoting.call(address, code, None, timeout_ms=60_000)
        return int(json.loads(answer.body)["table"]["dispatchBehindBytes"])
    finally:
        await remoting.close()
        await tasks.close()


def timed(action: Callable[[], None]) -> float:
    """Return the duration of ``action`` in seconds."""
    begin = time.perf_counter()
    action()
    return round(time.perf_counter() - begin, 2)


def memory_mib(pid: int) -> dict[str, int]:
    """Return the resident memory of a process in MiB: its own, and mapped files."""
    fields = proc_numbers(pid, "status")
    return {name: fields[name] >> 10 for name in ("RssAnon", "RssFile")}


def measure(
    server: Server, load_path: Path, topics: int, rounds: int, seconds: float, limit_s: float
) -> dict[str, object]:
    """Measure one broker. Raises BenchmarkFailed, AnchorFailed."""
    write_topics(server.home / "store", topics)
    line: dict[str, object] = {"broker": server.name, "topics": topics, "queues": topics * QUEUES}
    try:
        line["first_start_s"] = timed(server.start)
        measured = Measured(server, load_path, topics, seconds, limit_s)
        line["filling_per_s"] = round(measured.fill())
        line |= measured.rounds(rounds)
        line |= memory_mib(server.pid)
        line |= measured.restarts()
        line["after_kill"] = memory_mib(server.pid)
        server.stop()
        return line
    finally:
        server.kill()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--java", type=int, help="topics of the Java broker; 0 leaves it out")
    parser.add_argument("--limit", type=float, default=120.0, help="of the first messages, s")
    parser.add_argument("--place", help="the directory for the stores; the temporary one")
    words = parser.parse_args()
    java = JAVA_TOPICS if words.java is None else (words.java,) if words.java else ()
    tries = [("cometmq", words.topics), *(("java", topics) for topics in java)]
    with tempfile.TemporaryDirectory(prefix="cometmq-many-", dir=words.place) as place:
        load_path = build_load(Path(place))
        for name, topics in tries:
            made = partial(
                measure, load_path=load_path, topics=topics, rounds=words.rounds,
                seconds=words.seconds, limit_s=words.limit,
            )  # fmt: skip
            is_done = report(name, Path(place, f"{name}-{topics}"), made, topics=topics)
            if name == "java" and is_done:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
