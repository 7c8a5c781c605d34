"""Programs that were written for Spark's Kafka source, and every method of Spark's readers and
writers, with format("rocketmq")."""

import inspect
import re
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

import cometmq
from cometmq.core.errors import SettingsError
from cometmq.spark.kafka import from_kafka, hint, like_kafka
from cometmq.spark.options import BadOption
from cometmq.spark.read.options import parse
from cometmq.spark.write.options import parse as parse_sink
from cometmq.testing.cluster import Cluster
from tests.architecture.rules import ROOT

pytestmark = pytest.mark.spark

#: The options of Spark 4's guide of its Kafka source, each with a value.
KAFKA: Final = {
    "assign": '{"orders": {"broker-a": [0]}}',
    "subscribe": "orders",
    "subscribePattern": "orders-.*",
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "startingTimestamp": "1700000000000",
    "startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": 1}}}',
    "startingOffsets": "earliest",
    "endingTimestamp": "1700000000000",
    "endingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": 1}}}',
    "endingOffsets": "latest",
    "failOnDataLoss": "false",
    "kafkaConsumer.pollTimeoutMs": "120000",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
    "maxOffsetsPerTrigger": "10",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "15m",
    "minPartitions": "2",
    "maxRecordsPerPartition": "10",
    "groupIdPrefix": "spark",
    "kafka.group.id": "billing",
    "includeHeaders": "true",
    "startingOffsetsByTimestampStrategy": "latest",
    "kafka.security.protocol": "SSL",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "5",
}
SERVERS: Final = {"nameservers": "127.0.0.1:9876"}


@pytest.mark.parametrize("name", KAFKA)
def test_every_option_of_kafkas_guide_works_or_says_what_to_use(name: str) -> None:
    given = SERVERS | {name: KAFKA[name]}
    if name not in ("assign", "subscribe", "subscribePattern"):
        given |= {"subscribe": "orders"}
    given |= {"maxTriggerDelay": {"minOffsetsPerTrigger": "1"}}.get(name, {})
    given |= {
        "startingOffsetsByTimestampStrategy": {"startingTimestamp": "1"},
    }.get(name, {})
    if expected := hint(name) if name not in ("kafka.group.id",) else "":
        with pytest.raises(BadOption) as raised:
            parse(given)
        assert expected in str(raised.value)
        assert repr(name) in str(raised.value)
        with pytest.raises(BadOption, match="no such option"):
            parse_sink(given)
    else:
        parse(given)


def test_a_sink_takes_the_option_of_headers_and_no_other_value() -> None:
    assert parse_sink(SERVERS | {"includeHeaders": "true"}) == parse_sink(SERVERS)
    for read in (parse_sink, parse):
        with pytest.raises(BadOption, match="'includeHeaders'"):
            read(SERVERS | {"topic": "orders", "includeHeaders": "yes"})


def test_the_page_has_every_option_and_its_example_runs(
    spark: SparkSession, cometmq_cluster: Cluster
) -> None:
    page = (ROOT / "docs" / "spark" / "from-kafka.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+)`", page.split("\n| Kafka's source")[1]))
    assert set(KAFKA) - named == {"kafka.max.poll.records"}
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        client.wait(cometmq.Admin(client.inner.session).create_topic("orders-copy"))
        client.send("orders", b"an order", keys=["K"])
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    text = block.replace("127.0.0.1:9876", cometmq_cluster.namesrv)
    exec(compile(text, "from-kafka.md", "exec"), {"spark": spark})
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        copies = client.subscribe("orders-copy", group="copies", start="first")
        message = next(iter(copies))
        assert (message.body, message.keys) == (b"an order", ("K",))
        message.ack()


def test_kafkas_columns_there_and_back(spark: SparkSession, cometmq_cluster: Cluster) -> None:
    servers = {"nameservers": cometmq_cluster.namesrv}
    headers = "array(named_struct('key', 'a', 'value', cast('1' as binary)), "
    headers += "named_struct('key', 'a', 'value', cast('2' as binary)))"
    rows = spark.range(40).selectExpr(
        "cast(id % 4 as string) as key", "cast(id as string) as value", f"{headers} as headers"
    )
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        client.wait(cometmq.Admin(client.inner.session).create_topic("kafka-like", queues=4))
    sink = from_kafka(rows.coalesce(1)).write.format("rocketmq").options(**servers)
    sink.option("topic", "kafka-like").mode("append").save()
    source = spark.read.format("rocketmq").options(**servers).option("subscribe", "kafka-like")
    found = like_kafka(source.load())
    assert [f"{each.name} {each.dataType.simpleString()}" for each in found.schema] == [
        *("key binary", "value binary", "topic string", "partition int", "offset bigint"),
        *("timestamp timestamp", "timestampType int"),
        "headers array<struct<key:string,value:binary>>",
        "broker_name string",
    ]
    read = found.orderBy("partition", "offset").collect()
    by_key: dict[bytes, list[int]] = {}
    partitions: dict[bytes, set[int]] = {}
    for row in read:
        by_key.setdefault(bytes(row.key), []).append(int(row.value))
        partitions.setdefault(bytes(row.key), set()).add(row.partition)
        assert dict(row.headers)["a"] == b"2"
    assert by_key == {b"%d" % key: [*range(key, 40, 4)] for key in range(4)}
    assert all(len(each) == 1 for each in partitions.values())
    with pytest.raises(SettingsError, match="partition"):
        from_kafka(found)
    with pytest.raises(SettingsError, match="value"):
        from_kafka(rows.drop("value"))
    with pytest.raises(SettingsError, match="have no column 'body'"):
        like_kafka(source.load().drop("body"))


def public(kind: type) -> set[str]:
    return {name for name, each in inspect.getmembers(kind) if not name.startswith("_")}


#: Methods that choose another format, or a table of a catalogue.
OTHER_FORMATS: Final = {"changes", "csv", "jdbc", "json", "orc", "parquet", "table", "text", "xml"}


def test_every_method_of_a_reader(spark: SparkSession, cometmq_cluster: Cluster) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        client.send("walked", b"one")
    common = {"nameservers": cometmq_cluster.namesrv, "startingOffsets": "earliest"}
    reader = spark.read.format("rocketmq").schema("body binary").options(**common)
    assert reader.option("topic", "walked").load().count() == 1
    assert reader.load("ignored").count() == 1
    assert reader.load(schema="body binary, tags string").columns == ["body", "tags"]
    known = {"format", "schema", "option", "options", "load"}
    assert public(DataFrameReader) - OTHER_FORMATS == known
    stream = spark.readStream.format("rocketmq").schema("body binary").options(**common)
    assert stream.option("topic", "walked").load().isStreaming
    assert stream.load("ignored").isStreaming
    assert public(DataStreamReader) - OTHER_FORMATS - {"name"} == known


def refused(call: Any) -> str:
    """What Spark or the sink says against a call."""
    with pytest.raises((PySparkException, ValueError)) as raised:
        call()
    return str(raised.value)


def test_every_method_of_a_writer(spark: SparkSession, cometmq_cluster: Cluster) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        client.wait(cometmq.Admin(client.inner.session).create_topic("written"))
    frame = spark.range(1).selectExpr("cast(id as string) as body")
    given = {"nameservers": cometmq_cluster.namesrv, "topic": "written"}

    def writer() -> DataFrameWriter:
        return frame.write.format("rocketmq").options(**given)

    writer().mode("append").save()
    writer().mode("append").option("maxBatchMessages", "5").save("ignored")
    assert "cannot be overwritten" in refused(writer().mode("overwrite").save)
    for mode in ("ignore", "error"):
        assert "append" in refused(writer().mode(mode).save).lower()
    assert refused(writer().mode("append").partitionBy("body").save)
    assert refused(writer().bucketBy(2, "body").sortBy("body").mode("append").save)
    assert refused(writer().clusterBy("body").mode("append").save)
    # Spark gives the options of a table in its catalogue to no Python source; a view has them.
    writer().mode("append").saveAsTable("a_table")
    spark.sql("drop table a_table")
    options = ", ".join(f"{name} '{value}'" for name, value in given.items())
    spark.sql(f"create temporary view a_topic using rocketmq options ({options})")
    assert spark.sql("select * from a_topic").count() == 3
    assert refused(lambda: frame.write.mode("append").insertInto("a_topic"))
    spark.sql("drop view a_topic")
    known = {"format", "option", "options", "mode", "save", "partitionBy", "bucketBy", "sortBy"}
    known |= {"clusterBy", "saveAsTable", "insertInto"}
    assert public(DataFrameWriter) - OTHER_FORMATS == known
    read = spark.read.format("rocketmq").options(**given)
    assert read.load().count() == 3


def test_every_method_and_trigger_of_a_stream(
    spark: SparkSession, cometmq_cluster: Cluster, tmp_path: Path
) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        admin = cometmq.Admin(client.inner.session)
        for topic in ("streamed", "streamed-on"):
            client.wait(admin.create_topic(topic))
        for number in range(3):
            client.send("streamed", b"%d" % number)
    common = {"nameservers": cometmq_cluster.namesrv}
    frame = (
        spark.readStream.format("rocketmq").schema("body binary").options(**common)
        .options(topic="streamed", startingOffsets="earliest").load()
    )  # fmt: skip
    places = iter(range(100))

    def writer() -> DataStreamWriter:
        place = str(tmp_path / f"checkpoint{next(places)}")
        writer = frame.writeStream.format("rocketmq").options(**common)
        return writer.options(topic="streamed-on", checkpointLocation=place)

    def count() -> int:
        rows = spark.read.format("rocketmq").options(**common, topic="streamed-on").load()
        return rows.count()

    done = 0
    for to_the_end in (writer().trigger(availableNow=True), writer().trigger(once=True)):
        query = to_the_end.queryName(f"q{done}").outputMode("append").start()
        assert query.awaitTermination(120)
        done += 3
        assert count() == done
    for endless in (writer().trigger(processingTime="1 second"), writer()):
        query = endless.start("ignored")
        query.processAllAvailable()
        query.stop()
        done += 3
        assert count() == done
    assert refused(writer().outputMode("complete").start)
    assert "ontinuous" in refused(writer().trigger(continuous="1 second").start)
    # Spark does not tell a sink by which columns a stream is partitioned, so it changes nothing.
    query = writer().partitionBy("body").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert count() == done + 3
    query = writer().trigger(availableNow=True).toTable("another")
    assert query.awaitTermination(120)
    assert count() == done + 6
    spark.sql("drop table another")
    bodies: list[bytes] = []

    def take(batch: DataFrame, _: int) -> None:
        bodies.extend(bytes(row.body) for row in batch.collect())

    own = frame.writeStream.option("checkpointLocation", str(tmp_path / "own"))
    assert own.foreachBatch(take).trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(bodies) == [b"0", b"1", b"2"]
    known = {"clusterBy", "foreach", "foreachBatch", "format", "option", "options", "outputMode"}
    known |= {"partitionBy", "queryName", "start", "toTable", "trigger"}
    assert public(DataStreamWriter) == known
