"""Streams of one topic into sinks, in a process of its own, to be killed: one JSON argument."""

import json
import sys
from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.session import session_on
from tests.spark.conftest import QUICK_JVM
from tests.spark.sinks import COLUMNS, Place, start, streams


@dataclass(frozen=True)
class Query:
    """What to run: ``master`` is empty for a JVM of its own. A micro-batch has at most
    ``batch_messages``; 0 is no limit."""

    place: Place
    topic: str
    sinks: list[str]
    master: str = ""
    batch_messages: int = 0

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def from_json(text: str) -> Query:
    """What ``to_json`` gave."""
    fields = json.loads(text)
    return Query(**{**fields, "place": Place(**fields["place"])})


def settings(query: Query) -> dict[str, str]:
    """Small JVMs that start soon."""
    found = {
        **QUICK_JVM,
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.python.authenticate.socketTimeout": "60s",
    }
    return {**found, "spark.driver.host": "127.0.0.1"} if query.master else found


def session(query: Query) -> SparkSession:
    """A session of this process; failed tasks are tried again in both kinds."""
    return session_on(query.master or "local[2,4]", "killed", settings(query))


def messages(spark: SparkSession, query: Query) -> DataFrame:
    """The topic, from its first message on."""
    read = spark.readStream.format("rocketmq").schema(COLUMNS)
    read = read.option("nameservers", query.place.namesrv).option("topic", query.topic)
    if query.batch_messages:
        read = read.option("maxOffsetsPerTrigger", query.batch_messages)
    return read.option("startingOffsets", "earliest").load()


def main(query: Query) -> None:
    """Run the streams until killed; without a limit for batches, to the topic's end."""
    spark = session(query)
    running = []
    for stream in streams(query.sinks):
        writer = start(stream, query.sinks, messages(spark, query), query.place)
        if not query.batch_messages:
            writer = writer.trigger(availableNow=True)
        running.append(writer.start())
    if not query.batch_messages:
        for each in running:
            each.awaitTermination()
    else:
        # The first that ends ends all: the process starts anew.
        spark.streams.awaitAnyTermination()
    spark.stop()


if __name__ == "__main__":
    main(from_json(sys.argv[1]))
