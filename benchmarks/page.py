"""The page of a large cluster: how long a page takes, and what looking at it costs the broker.

    .venv/bin/python -m benchmarks.page [--topics 500] [--groups 200] [--viewers 1] [--rounds 7]
        [--seconds 5]

A node with topics of 16 queues, each with messages, and groups with lag; the page is a process of
its own, as `cometmq dashboard` is. In half of the rounds viewers open another page every two
seconds, and fetch the live part of the one before; in the others the page's process is stopped
(SIGSTOP), so that it asks nothing. Both kinds alternate, for single sends at full load (8 x 64) and
for one send in flight. A round is compared with the other of its pair, and the median of the pairs
counts, so that neighbours on the machine are in both. Processor times do not count them at all: of
the broker a send at full load, and of the page's process a second. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.loading import BenchmarkFailed, build_load
from benchmarks.servers import OurServer, cpu_s

QUEUES: Final = 16
TOPIC, GROUP = "wide-", "group-"
#: A viewer opens another page at this interval.
INTERVAL_S: Final = 2.0
GRACE_S: Final = 20
#: Pages of a viewer; a number is put in the place of ``{}``.
PATHS: Final = (
    "/", "/topics", "/topics?q=wide-1", f"/topics/{TOPIC}{{}}", "/groups", f"/groups/{GROUP}{{}}",
    f"/groups/{GROUP}{{}}/members", f"/messages?topic={TOPIC}{{}}", "/producers", "/waiting",
    "/store", "/settings", "/dead",
)  # fmt: skip


def write_tables(store: Path, topics: int, groups: int) -> None:
    """Write the broker's topics, and groups that have consumed nothing of two topics each."""
    names = [f"{TOPIC}{number}" for number in range(topics)]
    table = {
        name: {
            "order": False, "perm": 6, "readQueueNums": QUEUES, "topicFilterType": "SINGLE_TAG",
            "topicName": name, "topicSysFlag": 0, "writeQueueNums": QUEUES,
        }
        for name in names
    }  # fmt: skip
    offsets = {
        f"{names[number * step % topics]}@{GROUP}{number}": dict.fromkeys(
            map(str, range(QUEUES)), 0
        )
        for number in range(groups)
        for step in (1, 7)
    }
    every = {
        f"{GROUP}{number}": {"groupName": f"{GROUP}{number}", "consumeEnable": True}
        for number in range(groups)
    }
    config = store / "config"
    config.mkdir(parents=True)
    version = {"counter": 1, "timestamp": 1}
    for name, content in {
        "topics.json": {"dataVersion": version, "topicConfigTable": table},
        "subscriptionGroup.json": {"dataVersion": version, "subscriptionGroupTable": every},
        "consumerOffset.json": {"offsetTable": offsets},
    }.items():
        (config / name).write_text(json.dumps(content))


@contextmanager
def page_process(namesrv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the page of a cluster; yield its process and its host and port."""
    words = ["-m", "cometmq.cli", "dashboard", "-n", namesrv, "--port", "0"]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().partition("ready dashboard=")[2]
            if not url:
                raise BenchmarkFailed("the page did not start")
            yield process, urlsplit(url).netloc
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


@dataclass(slots=True)
class Viewer:
    """Somebody who opens page after page; ``took_ms`` has the time of each by its path."""

    place: str
    number: int
    took_ms: list[tuple[float, str]] = field(default_factory=list)

    def look(self, path: str, **headers: str) -> None:
        """Open a page. Raises BenchmarkFailed."""
        connection = http.client.HTTPConnection(self.place, timeout=60)
        begin = time.perf_counter()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
        self.took_ms.append(((time.perf_counter() - begin) * 1000, path))
        if answer.status != 200:
            raise BenchmarkFailed(f"{path}: status {answer.status}")

    def watch(self, ended: threading.Event, topics: int, groups: int) -> None:
        """Open pages until the end."""
        chance = random.Random(self.number)
        last = "/"
        while not ended.wait(chance.uniform(0.5, 1.5) * INTERVAL_S / 2):
            self.look(last, **{"x-fragment": "1"})
            if ended.wait(INTERVAL_S / 2):
                break
            last = chance.choice(PATHS).format(chance.randrange(min(topics, groups)))
            self.look(last)


@contextmanager
def looking(viewers: Sequence[Viewer], topics: int, groups: int) -> Iterator[None]:
    """Let viewers look during the block."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=each.watch, args=(ended, topics, groups)) for each in viewers
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@dataclass(slots=True)
class Rounds:
    """What was measured without viewers and with them; rounds of the same index are a pair."""

    rates: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    p99_us: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    send_us: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    page_share: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """Medians of the rounds, and of what is left in each pair."""
        rate, p99, send = (
            {seen: round(statistics.median(each[seen]), 2) for seen in each}
            for each in (self.rates, self.p99_us, self.send_us)
        )
        return {
            "sends_per_s": rate[False], "sends_per_s_viewed": rate[True],
            "kept": _ratio(self.rates),
            "p99_us": p99[False], "p99_us_viewed": p99[True], "p99_ratio": _ratio(self.p99_us),
            "broker_us_a_send": send[False], "broker_us_a_send_viewed": send[True],
            "broker_us_ratio": _ratio(self.send_us),
            "page_share_of_a_processor": round(statistics.median(self.page_share), 4),
            "rounds": {"rates": self.rates, "p99_us": self.p99_us, "send_us": self.send_us},
        }  # fmt: skip


def _ratio(rounds: dict[bool, list[float]]) -> float:
    """Return the median over the pairs of what was seen with viewers by what was seen without."""
    pairs = zip(rounds[True], rounds[False], strict=True)
    return round(statistics.median(seen / unseen for seen, unseen in pairs), 3)


def load(
    program: Path, server: OurServer, asked: argparse.Namespace, kind: tuple[int, int]
) -> dict[str, float]:
    """Run the load generator once over all topics. Raises BenchmarkFailed."""
    words = (program, "send", server.port, TOPIC, QUEUES, *kind, 128, asked.seconds, asked.topics)
    done = subprocess.run(
        [str(word) for word in words], stdout=-1, timeout=asked.seconds + GRACE_S, check=False
    )
    if done.returncode:
        raise BenchmarkFailed("the load generator failed")
    found: dict[str, float] = json.loads(done.stdout)
    if found["errors"]:
        raise BenchmarkFailed(f"{found['errors']} errors")
    return found


def measure(asked: argparse.Namespace, place: Path) -> dict[str, object]:
    """Measure all rounds. Raises BenchmarkFailed."""
    program = build_load(place)
    server = OurServer(place / "home")
    write_tables(place / "home" / "store", asked.topics, asked.groups)
    server.start()
    try:
        with page_process(server.namesrv) as (process, address):
            stored, needed = 0.0, asked.topics * QUEUES
            while stored < needed:  # each queue has its files then
                stored = load(program, server, asked, (8, 64))["stored"]
            viewers = [Viewer(address, number) for number in range(asked.viewers)]
            for path in PATHS:  # what only the first view does is measured by tests/operation
                viewers[0].look(path.format(0))
            viewers[0].took_ms.clear()
            found = Rounds()
            for number in range(asked.rounds):
                for is_seen in (False, True) if number % 2 else (True, False):
                    _round(asked, program, server, found, process, viewers if is_seen else ())
    finally:
        server.kill()
    took = sorted(each for viewer in viewers for each in viewer.took_ms)
    return {
        "topics": asked.topics, "groups": asked.groups, "viewers": asked.viewers,
        "pages": len(took), "page_ms": round(took[len(took) // 2][0], 1),
        "slowest": [f"{path} {ms:.0f} ms" for ms, path in took[-3:]],
        "load_average": round(os.getloadavg()[0], 1), **found.figures(),
    }  # fmt: skip


def _round(
    asked: argparse.Namespace, program: Path, server: OurServer, found: Rounds,
    process: subprocess.Popen[str], viewers: Sequence[Viewer],
) -> None:  # fmt: skip
    """Measure both loads once, without viewers or with them."""
    is_seen = bool(viewers)
    process.send_signal(signal.SIGCONT if is_seen else signal.SIGSTOP)
    with looking(viewers, asked.topics, asked.groups):
        begin = time.perf_counter()
        used_s, page_s = cpu_s(server.pid), cpu_s(process.pid)
        sent = load(program, server, asked, (8, 64))
        used_s = cpu_s(server.pid) - used_s
        if is_seen:
            found.page_share.append((cpu_s(process.pid) - page_s) / (time.perf_counter() - begin))
        found.rates[is_seen].append(sent["messages_per_s"])
        found.send_us[is_seen].append(round(used_s * 1e6 / sent["stored"], 3))
        found.p99_us[is_seen].append(load(program, server, asked, (1, 1))["p99_us"])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--viewers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-page-") as place:
        try:
            print(json.dumps(measure(asked, Path(place))))
        except BenchmarkFailed as error:
            print(json.dumps({"failed": str(error)}))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
