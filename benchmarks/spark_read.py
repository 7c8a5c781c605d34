"""How fast Spark reads messages from a store and over the network, beside Parquet of the same rows.

Fills a topic of our broker with messages of 256 B (random bodies, four properties and a key each),
writes the same rows as Parquet (snappy) by Spark, and reads both into a sink that drops all, in
alternating rounds of one Spark session, ``local[1]``: all columns, ten columns, and both over the
network from the running broker. Then streams: the topic into Parquet, and Spark's own stream from
Parquet files of the same rows into Parquet, both in four micro-batches, each into one file;
``files`` is the topic into Parquet as it comes, a file for each task of up to 50 000 messages. And
micro-batches of few messages beside those of a Python source that gives nothing. One JSON line a
case, medians; ``ratio`` is what the acceptance is about, and ``processor_ratio`` the same in
processor seconds of the JVM and all Python processes but the broker, which a busy machine does not
change.
Run: ``.venv/bin/python -m benchmarks.spark_read [--messages 200000] [--rounds 3] [--only CASE]``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from benchmarks.spark_decode import TEN
from cometmq.admin.api import Admin
from cometmq.admin.node import NodeProcess
from cometmq.client.blocking import Client
from cometmq.message.model import Message, MessageQueue
from cometmq.spark.schema import BY_NAME, NAMES
from cometmq.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit

TOPIC: Final = "bench-topic"
QUEUES: Final = 8
BATCH: Final = 100
STREAM_BATCHES: Final = 4
SMALL_BATCHES: Final = 15
CASES: Final = ("all", "ten", "wire", "wire-ten", "stream", "overhead")


def fill(namesrv: str, messages: int, body_bytes: int) -> None:
    """Send the messages, in batches."""
    chance = random.Random(6)
    with Client(namesrv) as client:
        route = client.wait(Admin(client.inner.session).create_topic(TOPIC, queues=QUEUES))
        broker = route.queue_datas[0].broker_name
        for first in range(0, messages, BATCH):
            batch = [
                Message(
                    TOPIC, chance.randbytes(body_bytes), tag=f"tag{number % 8}",
                    keys=(f"order-{number:09d}",), properties={"kind": "order"},
                )
                for number in range(first, min(first + BATCH, messages))
            ]  # fmt: skip
            queue = MessageQueue(TOPIC, broker, first // BATCH % QUEUES)
            client.send_batch(batch, queue=queue)


class Nothing(DataSource):
    """A Python source that has offsets but no rows: the cost of a micro-batch without CometMQ's
    source."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "queue_offset bigint"

    def streamReader(self, schema: object) -> NothingReader:
        return NothingReader()


class NothingReader(DataSourceStreamReader):
    """Advances one offset per batch, with one task per queue like CometMQ's source."""

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"at": min(start["at"] + 1, SMALL_BATCHES)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter(())


class Bench:
    """One session, one broker, one set of rows."""

    def __init__(self, spark: SparkSession, root: Path, namesrv: str, messages: int) -> None:
        self.spark = spark
        self.root = root
        self.namesrv = namesrv
        self.messages = messages
        self.parquet = str(root / "rows.parquet")
        self.batches = str(root / "batches.parquet")

    def prepare(self) -> None:
        """Write the rows as Parquet."""
        self.store(NAMES).write.parquet(self.parquet)

    def store(self, names: tuple[str, ...]) -> DataFrame:
        """Return the topic, read from the broker's files."""
        read = self.spark.read.format("rocketmq").schema(ddl(names)).option("topic", TOPIC)
        return read.option("store", str(self.root / "store")).load()

    def wire(self, names: tuple[str, ...]) -> DataFrame:
        """Return the topic, read from the broker."""
        read = self.spark.read.format("rocketmq").schema(ddl(names)).option("topic", TOPIC)
        return read.option("nameservers", self.namesrv).load()

    def rows(self, names: tuple[str, ...]) -> DataFrame:
        """Return the same rows, read from Parquet."""
        return self.spark.read.parquet(self.parquet).select(*names)

    def prepare_batches(self) -> None:
        """Write the rows again as Parquet, one file per batch."""
        rows = self.store(NAMES).repartition(STREAM_BATCHES)
        rows.write.mode("overwrite").parquet(self.batches)

    def stream_ours(self, target: Path, *, one_file: bool = True) -> None:
        """Stream the topic into Parquet, to its end."""
        read = self.spark.readStream.format("rocketmq").option("topic", TOPIC)
        rows = (
            read.option("nameservers", self.namesrv)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.messages // STREAM_BATCHES)
            .load()
        )
        self._stream(rows.coalesce(1) if one_file else rows, target)

    def stream_parquet(self, target: Path) -> None:
        """Stream the Parquet rows into Parquet, one file per batch."""
        schema = self.spark.read.parquet(self.batches).schema
        read = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        self._stream(read.parquet(self.batches), target)

    def _stream(self, rows: DataFrame, target: Path) -> None:
        writer = rows.writeStream.format("parquet").option("path", str(target / "rows"))
        writer = writer.option("checkpointLocation", str(target / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def batch_ms(self, ours: bool) -> float:
        """Return the median time of a micro-batch with few messages."""
        read = self.spark.readStream.format("rocketmq" if ours else "nothing")
        if ours:
            read = (
                read.option("nameservers", self.namesrv)
                .option("topic", TOPIC)
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", QUEUES)
                .schema("queue_offset bigint")
            )
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            writer = read.load().writeStream.format("noop").option("checkpointLocation", folder)
            query = writer.start()
            while len([p for p in query.recentProgress if p["batchId"] >= 0]) < SMALL_BATCHES:
                time.sleep(0.05)
            query.stop()
        found = [float(p["durationMs"]["triggerExecution"]) for p in query.recentProgress]
        return statistics.median(found[3:SMALL_BATCHES])


def ddl(names: tuple[str, ...]) -> str:
    """Return a schema of these columns."""
    return ", ".join(f"{name} {BY_NAME[name].spark}" for name in names)


def drop(rows: DataFrame) -> None:
    """Read all rows and discard them."""
    rows.write.format("noop").mode("overwrite").save()


def alternating(works: dict[str, Callable[[], float | None]], rounds: int) -> dict[str, float]:
    """Run each function in alternating rounds, after one round to warm up.

    Return the median of the seconds of each (or of its results), and its processor seconds
    (``NAME_cpu``).
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    spent: dict[str, list[float]] = {f"{name}_cpu": [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begun, used = time.perf_counter(), processor_s()
            told = work()
            if number:
                found[name].append(time.perf_counter() - begun if told is None else told)
                spent[f"{name}_cpu"].append(processor_s() - used)
    return {name: statistics.median(times) for name, times in {**found, **spent}.items()}


def processor_s() -> float:
    """Return the processor seconds of this process and its descendants, including ended ones, but
    without the broker (any process that runs ``cometmq.cli``)."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            command = (path / "cmdline").read_bytes()
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.name)
        parents[pid] = -1 if b"cometmq.cli" in command else int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(ticks.get(pid, 0) for pid in own) / os.sysconf("SC_CLK_TCK")


def measure(bench: Bench, case: str, rounds: int) -> dict[str, object]:
    """Measure one case."""
    if case in ("all", "ten"):
        names = NAMES if case == "all" else TEN
        times = alternating(
            {
                "store": lambda: drop(bench.store(names)),
                "parquet": lambda: drop(bench.rows(names)),
            },
            rounds,
        )
        return {**times, "ratio": times["store"] / times["parquet"],
                "processor_ratio": times["store_cpu"] / times["parquet_cpu"],
                "messages_per_s": bench.messages / times["store"]}  # fmt: skip
    if case in ("wire", "wire-ten"):
        names = NAMES if case == "wire" else TEN
        times = alternating(
            {"store": lambda: drop(bench.store(names)), "wire": lambda: drop(bench.wire(names))},
            rounds,
        )
        return {**times, "ratio": times["store"] / times["wire"],
                "processor_ratio": times["store_cpu"] / times["wire_cpu"],
                "messages_per_s": bench.messages / times["wire"]}  # fmt: skip
    if case == "stream":
        numbers = iter(range(1_000))

        def fresh(work: Callable[[Path], None]) -> Callable[[], None]:
            def run() -> None:
                folder = bench.root / f"stream-{next(numbers)}"
                work(folder)
                shutil.rmtree(folder)

            return run

        bench.prepare_batches()
        times = alternating(
            {
                "ours": fresh(bench.stream_ours),
                "parquet": fresh(bench.stream_parquet),
                "files": fresh(partial(bench.stream_ours, one_file=False)),
            },
            rounds,
        )
        return {**times, "ratio": times["parquet"] / times["ours"],
                "processor_ratio": times["parquet_cpu"] / times["ours_cpu"],
                "messages_per_s": bench.messages / times["ours"]}  # fmt: skip
    bench.spark.dataSource.register(Nothing)
    times = alternating(
        {"ours_ms": lambda: bench.batch_ms(True), "empty_ms": lambda: bench.batch_ms(False)}, 1
    )
    return {**times, "ratio": times["ours_ms"] / times["empty_ms"]}


def main() -> None:
    """Measure the requested cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=256, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--only", choices=CASES, action="append")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-spark-") as folder:
        root = Path(folder)
        node = NodeProcess(root / "store")
        node.start()
        try:
            fill(node.namesrv, given.messages, given.body)
            spark = local_session("benchmark", cores=given.cores, memory="2g")
            bench = Bench(spark, root, node.namesrv, given.messages)
            bench.prepare()
            for case in given.only or CASES:
                found = measure(bench, case, given.rounds)
                rounded = {name: round(float(value), 3) for name, value in found.items()}  # type: ignore[arg-type]
                print(json.dumps({"case": case, "cores": given.cores, **rounded}), flush=True)
            spark.stop()
        finally:
            node.terminate()


if __name__ == "__main__":
    main()
