"""What sending the rows of a Spark task costs: processor time a row, and messages a second.

    python -m benchmarks.spark_sink [--rows 100000] [--bytes 256]

No Spark: Arrow batches as a task gets them go to a broker in another process. ``encode`` makes
messages and nothing else; ``sink`` sends them as the sink does; ``client`` is the blocking client's
``send_many`` with the same messages. Prints one JSON line a case; ``cpu_us`` is of this process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from cometmq.client.blocking import Client
from cometmq.message.model import Message
from cometmq.spark.write.options import WriteOptions, parse
from cometmq.spark.write.rows import Encoder, Ids, Origin
from cometmq.spark.write.sender import Sender
from cometmq.testing.cluster import ProcessCluster

TOPIC = "Sink"
GUARDED = "Guarded"
BATCH_ROWS = 10_000
QUEUES = 8


def frames(rows: int, size_bytes: int, *, wide: bool) -> Iterator[pa.RecordBatch]:
    """Yield rows with a body; if ``wide``, also with tags, keys and a property."""
    for start in range(0, rows, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, rows))
        columns = {"body": pa.array([b"%0*d" % (size_bytes, at) for at in numbers])}
        if wide:
            columns["tags"] = pa.array([("red", "blue")[at % 2] for at in numbers])
            columns["keys"] = pa.array([f"key-{at}" for at in numbers])
            columns["properties"] = pa.array(
                [[("number", f"{at}")] for at in numbers], pa.map_(pa.string(), pa.string())
            )
        yield pa.RecordBatch.from_pydict(columns)


def measured(case: str, rows: int, work: Callable[[], None]) -> None:
    begun, begun_cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    print(
        json.dumps(
            {"case": case, "cpu_us": round(cpu / rows * 1e6, 2), "rows_s": round(rows / wall)}
        ),
        flush=True,
    )


def encode(options: WriteOptions, batches: list[pa.RecordBatch]) -> None:
    encoder = Encoder(options, Ids(Origin("bench", 0, 0)))
    for batch in batches:
        for _ in encoder.messages(batch):
            pass


def sink(options: WriteOptions, batches: list[pa.RecordBatch], run: str) -> None:
    encoder, sender = Encoder(options, Ids(Origin(run, 0, 0))), Sender(options, 0)
    for batch in batches:
        for message in encoder.messages(batch):
            sender.add(message)
    sender.finish()


def client(namesrv: str, batches: list[pa.RecordBatch]) -> None:
    with Client(namesrv) as opened:
        for batch in batches:
            opened.send_many([Message(TOPIC, body) for body in batch.column("body").to_pylist()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=256)
    asked = parser.parse_args()
    plain = list(frames(asked.rows, asked.bytes, wide=False))
    wide = list(frames(asked.rows, asked.bytes, wide=True))
    with tempfile.TemporaryDirectory() as folder:
        settings = {"dropRepeatedIdsTopics": GUARDED, "mappedFileSizeCommitLog": str(1 << 26)}
        with ProcessCluster(Path(folder), **settings) as cluster:
            for topic in (TOPIC, GUARDED):
                with Client(cluster.namesrv) as opened:
                    opened.send(topic, b"first")
            to_topic, to_guarded = (
                parse({"nameservers": cluster.namesrv, "topic": topic})
                for topic in (TOPIC, GUARDED)
            )
            rows = asked.rows
            measured("encode", rows, lambda: encode(to_topic, plain))
            measured("encode wide", rows, lambda: encode(to_topic, wide))
            measured("client", rows, lambda: client(cluster.namesrv, plain))
            measured("sink", rows, lambda: sink(to_topic, plain, "plain"))
            measured("sink wide", rows, lambda: sink(to_topic, wide, "wide"))
            measured("sink guarded", rows, lambda: sink(to_guarded, plain, "guarded"))


if __name__ == "__main__":
    main()
