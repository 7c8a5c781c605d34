"""What a message costs on its way through Spark, in processor time: the flights of 2013.

    python -m benchmarks.spark_flights [--flights N] [--rounds N]

The flights are replayed into a broker of their own (one process sends), and a few of them into a
second topic. Then Spark reads both, as a batch and as a stream, and throws the rows away or writes
Parquet. Each line is one case. From the two topics follow what a message costs Spark (the JVM and
its Python workers) and the broker, in microseconds of processor time, and what a job costs whatever
it reads, in seconds of it. The first round warms up and does not count.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import uvloop

import cometmq
from cometmq.admin.node import NodeProcess
from cometmq.spark.schema import COLUMNS
from cometmq.spark.session import local_session
from examples.flights.data import COUNT, flights
from examples.flights.replay import replay

QUEUES = 8
BATCH = 100_000
FEW = 10_000
ALL = ", ".join(f"{column.name} {column.spark}" for column in COLUMNS)
TEN = (
    "topic string, queue_id int, queue_offset bigint, msg_id string, keys string, tags string, "
    "body binary, born_timestamp timestamp, store_timestamp timestamp, size_bytes int"
)

#: Runs a case on a topic; the number distinguishes rounds.
Work = Callable[[str, int], object]


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        if fields := stat(int(place.name)):
            below.setdefault(int(fields[1]), []).append(int(place.name))
    waiting = [pid]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += below.get(found, [])


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its descendants, including ended ones."""
    ticks = sum(sum(map(int, stat(each)[11:15])) for each in descendants(pid))
    return ticks / os.sysconf("SC_CLK_TCK")


class Bench:
    """The broker, the session, and the two topics with their numbers of messages."""

    def __init__(self, folder: Path, node: NodeProcess, topics: dict[str, int]) -> None:
        self.folder = folder
        self.node = node
        self.topics = topics
        self.spark = local_session("benchmark", cores=1, memory="2g")

    def batch(self, topic: str, columns: str, target: Path | None = None) -> None:
        """Read a topic once."""
        read = self.spark.read.format("rocketmq").schema(columns)
        rows = read.option("nameservers", self.node.namesrv).option("topic", topic).load()
        if target is None:
            rows.write.format("noop").mode("overwrite").save()
        else:
            rows.write.parquet(str(target))

    def stream(self, topic: str, columns: str, target: Path) -> None:
        """Read a topic in micro-batches of at most BATCH messages, into Parquet."""
        read = self.spark.readStream.format("rocketmq").schema(columns)
        read = read.option("nameservers", self.node.namesrv).option("topic", topic)
        read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH)
        write = read.load().writeStream.format("parquet").option("path", str(target))
        write = write.option("checkpointLocation", str(target / "_checkpoint"))
        write.trigger(availableNow=True).start().awaitTermination()

    def scan(self, place: Path) -> None:
        """Read all of some Parquet files."""
        self.spark.read.parquet(str(place)).write.format("noop").mode("overwrite").save()

    def sizes(self, place: Path, count: int) -> dict[str, float]:
        """Return the bytes per message in the log and in Parquet files."""
        rows = self.spark.read.parquet(str(place))
        [(found, in_log)] = rows.selectExpr("count(*)", "avg(size_bytes)").collect()
        assert found == count, f"{found} rows of {count} messages"
        in_files = sum(file.stat().st_size for file in place.glob("*.parquet")) / count
        return {"log": round(in_log, 1), "parquet": round(in_files, 1)}

    def measure(self, name: str, work: Work, rounds: int) -> None:
        """Run a case and print its line."""
        used = {topic: self._used(work, topic, rounds) for topic in self.topics}
        (few, few_used), (many, many_used) = (
            (self.topics[topic], used[topic]) for topic in sorted(used, key=self.topics.__getitem__)
        )
        spark_s, broker_s = (
            (more - less) / (many - few) for more, less in zip(many_used, few_used, strict=True)
        )
        line = {"case": name, "spark_us": round(spark_s * 1e6, 2)}
        line |= {"broker_us": round(broker_s * 1e6, 2)}
        line |= {"job_s": round(few_used[0] - few * spark_s, 2)}
        print(json.dumps(line), flush=True)

    def _used(self, work: Work, topic: str, rounds: int) -> tuple[float, float]:
        """Return the processor seconds of Spark and of the broker for a case on one topic."""
        assert self.node.process is not None
        spark_s, broker_s = [], []
        for number in range(rounds + 1):
            broker_before, all_before = cpu_s(self.node.process.pid), cpu_s(os.getpid())
            work(topic, number)
            broker, everything = cpu_s(self.node.process.pid), cpu_s(os.getpid())
            if number:
                broker_s.append(broker - broker_before)
                spark_s.append(everything - all_before - broker_s[-1])
        return statistics.median(spark_s), statistics.median(broker_s)


async def send_all(nameservers: str, topics: dict[str, int]) -> None:
    """Replay the given number of flights into each topic, as fast as possible."""
    async with cometmq.Client(nameservers) as client:
        for topic, count in topics.items():
            await cometmq.Admin(client.session).create_topic(topic, queues=QUEUES)
            await replay(client, islice(flights(), count), topic=topic)


def main(count: int, rounds: int, folder: Path) -> None:
    """Measure all cases."""
    node = NodeProcess(folder / "store", settings={"mappedFileSizeCommitLog": str(1 << 26)})
    node.start()
    try:
        topics = {"few": FEW, "many": count}
        measure_sending(node, topics)
        bench = Bench(folder, node, topics)
        cases: dict[str, Work] = {
            "batch, 10 columns, to Parquet": lambda topic, n: bench.batch(
                topic, TEN, folder / f"batch-{topic}-{n}"
            ),
            "stream, 10 columns, to Parquet": lambda topic, n: bench.stream(
                topic, TEN, folder / f"stream-{topic}-{n}"
            ),
            "batch, 10 columns": lambda topic, _: bench.batch(topic, TEN),
            "batch, all columns": lambda topic, _: bench.batch(topic, ALL),
            "Parquet, 10 columns": lambda topic, _: bench.scan(folder / f"batch-{topic}-1"),
        }
        for name, work in cases.items():
            bench.measure(name, work, rounds)
        written = folder / "batch-many-1"
        print(json.dumps({"case": "bytes a message", **bench.sizes(written, count)}))
        bench.spark.stop()
    finally:
        node.terminate()


def measure_sending(node: NodeProcess, topics: dict[str, int]) -> None:
    """Measure the broker's cost of a single send."""
    assert node.process is not None
    before = cpu_s(node.process.pid)
    uvloop.run(send_all(node.namesrv, topics))
    used_us = (cpu_s(node.process.pid) - before) / sum(topics.values()) * 1e6
    print(json.dumps({"case": "single sends", "broker_us": round(used_us, 2)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=COUNT, metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flights-") as where:
        main(given.flights, given.rounds, Path(where))
