"""Messages that cannot be read, in each mode."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any
from zlib import compress

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cometmq.message.model import MessageQueue
from cometmq.message.record import COMPRESSED, Record, pack
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from cometmq.spark.decode import Block
from cometmq.spark.options import BadOption
from cometmq.spark.read.corrupt import (
    BATCH_BYTES,
    CorruptMessage,
    CorruptOptions,
    Mode,
    clean,
    parse,
)
from cometmq.spark.read.fetcher import batches
from cometmq.spark.read.planning import Range
from cometmq.spark.read.reader import sampled_bytes
from tests.spark.records import plain_record
from tests.spark.scripted import Answer, ScriptedCluster, pull_answer
from tests.spark.topics import options

QUEUE = MessageQueue("T", "broker-a", 3)
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
NAMES = ("queue_offset", "body", "tags", "_corrupt")


def packed(offset: int, body: bytes, text: bytes = b"TAGS\x01tag") -> bytes:
    return pack(
        Record(0, 0, 3, 0, offset, 9, COMPRESSED, 1, HOST, 2, HOST, 0, 0, body, "T", text)
    )  # fmt: skip


def spoilt(offset: int, at: int) -> bytes:
    data = bytearray(plain_record(offset))
    data[at] ^= 0x70
    return bytes(data)


GOOD = compress(b"good")
#: A good one; one that does not inflate; one of another CRC; lengths that contradict each other;
#: properties that are none; a good one.
RECORDS = (
    plain_record(0),
    packed(1, b"no zlib"),
    spoilt(2, 88),
    spoilt(3, 84),
    packed(4, GOOD, b"TAGS\x01tag\x02KEYS"),
    packed(5, GOOD),
)


def read(
    *chosen: int, names: tuple[str, ...] = NAMES, chain: bytes = b"", **extra: str
) -> list[dict[str, Any]]:
    def script(request: Request[Any]) -> Answer:
        at = request.header.queue_offset
        data = b"".join(RECORDS[offset] for offset in chosen if offset >= at)
        return pull_answer(0, 6, data + chain)

    with ScriptedCluster("T", script) as cluster:
        asked = options(cluster.namesrv, "T", failOnDataLoss="false", **extra)
        found = batches([Range(QUEUE, 0, 6)], asked, names)
        return [row for batch in found for row in batch.to_pylist()]


def test_a_bad_message_is_an_error_that_names_its_place() -> None:
    with pytest.raises(
        CorruptMessage, match=r"offset 1 of queue 3 of topic 'T' on.*cannot be decompressed"
    ) as caught:
        read(0, 1)
    error = caught.value
    assert (error.topic, error.broker_name, error.queue_id, error.queue_offset) == (
        *("T", "broker-a", 3, 1),
    )
    with pytest.raises(CorruptMessage, match=r"offset 3 of queue 3 of topic 'T'.*length"):
        read(0, 3)
    with pytest.raises(CorruptMessage, match=r"offset 2 .*CRC"):
        read(0, 2, checkCrc="true")


@pytest.mark.parametrize("code", [0, 2])  # success, and a broker that is busy
def test_a_sample_that_cannot_be_taken_is_no_error(code: int) -> None:
    """The tasks meet the record, or the busy broker, and know what to do."""
    with ScriptedCluster("T", lambda _: pull_answer(code, 6, RECORDS[3])) as cluster:
        access = options(cluster.namesrv, "T").access
        assert sampled_bytes([Range(QUEUE, 0, 100)], access) is None


def test_what_nobody_reads_is_no_error() -> None:
    rows = read(0, 1, 2, 4, names=("queue_offset", "tags"))
    assert [row["tags"] for row in rows] == ["tag"] * 4
    assert [row["queue_offset"] for row in read(0, 2)] == [0, 2]


def test_texts_that_others_read_fail_no_query() -> None:
    assert [row["tags"] for row in read(4, 5)] == ["tag", "tag"]
    assert [row["_corrupt"] for row in read(4, 5)] == [None, None]


def test_bad_messages_are_let_through_with_the_reason() -> None:
    rows = read(0, 1, 2, 3, 4, 5, mode="permissive", checkCrc="true")
    assert [row["queue_offset"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["body"] for row in rows] == [b"body", None, None, None, b"good", b"good"]
    assert [row["tags"] for row in rows] == ["tag", "tag", "tag", None, "tag", "tag"]
    words = [None, "decompressed", "CRC", "length", "not a name with a value", None]
    for row, word in zip(rows, words, strict=True):
        assert (row["_corrupt"] is None) == (word is None)
        assert word is None or word in row["_corrupt"]


@pytest.mark.parametrize("mode", [Mode.FAILFAST, Mode.PERMISSIVE])
def test_batches_are_of_a_size_whatever_the_messages(mode: Mode) -> None:
    for body_bytes, rows in ((100, 3 * BATCH_BYTES // 200), (3 * BATCH_BYTES, 2)):
        record = pack(
            Record(0, 0, 3, 0, 7, 9, 0, 1, HOST, 2, HOST, 0, 0, bytes(body_bytes), "T", b"")
        )
        block = Block(record * rows, "broker-a")
        found = list(clean(block, {}, NAMES, CorruptOptions(mode)))
        assert sum(batch.num_rows for batch in found) == rows
        most = max(batch.num_rows for batch in found)
        assert most == max(1, BATCH_BYTES // len(record))


def test_a_filter_lets_through_what_nobody_can_read() -> None:
    for rows in (
        read(0, 3, 5, mode="PERMISSIVE", filter="other"),
        read(0, 3, 5, mode="PERMISSIVE", sqlFilter="TAGS = 'other'"),
    ):
        assert [row["queue_offset"] for row in rows] == [3]


def test_bad_messages_are_put_aside(tmp_path: Path) -> None:
    rows = read(0, 1, 2, 3, 4, 5, badRecordsPath=str(tmp_path), checkCrc="true")
    assert [row["queue_offset"] for row in rows] == [0, 5]
    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["offset"] for line in lines] == [1, 2, 3, 4]
    assert {(line["topic"], line["broker"], line["queue"]) for line in lines} == {
        ("T", "broker-a", 3)
    }
    raw = [b64decode(line["record"]) for line in lines]
    assert [raw[0], raw[1], raw[3]] == [RECORDS[1], RECORDS[2], RECORDS[4]]


def test_a_broken_chain_is_always_an_error() -> None:
    for mode in ("FAILFAST", "PERMISSIVE"):
        with pytest.raises(CorruptMessage, match=r"offset 0 of queue 3.*are not records"):
            read(0, chain=b"rubbish", mode=mode)


def test_options() -> None:
    assert parse({}) == CorruptOptions()
    assert parse({"mode": "failfast", "checkCrc": "true"}) == CorruptOptions(Mode.FAILFAST, True)
    assert parse({"mode": "permissive"}) == CorruptOptions(Mode.PERMISSIVE)
    assert parse({"badRecordsPath": "bad"}) == CorruptOptions(Mode.ASIDE, False, "bad")
    for given in ({"mode": "DROPMALFORMED"}, {"mode": "FAILFAST", "badRecordsPath": "x"}):
        with pytest.raises(BadOption, match="'mode'"):
            parse(given)
    with pytest.raises(BadOption, match="'badRecordsPath'"):
        parse({"badRecordsPath": ""})


@pytest.mark.spark
def test_spark_shows_or_leaves_out_what_is_bad(spark: SparkSession, tmp_path: Path) -> None:
    def script(request: Request[Any]) -> Answer:
        if request.code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            return 0, {"offset": "0" if request.code == RequestCode.GET_MIN_OFFSET else "6"}, b""
        at = request.header.queue_offset
        return pull_answer(0, 6, b"".join(RECORDS[at:]))

    with ScriptedCluster("T", script) as cluster:
        read = spark.read.format("rocketmq").option("nameservers", cluster.namesrv)
        read = read.option("topic", "T").option("checkCrc", "true")
        with pytest.raises(PySparkException, match="offset 3 of queue 3 of topic 'T'"):
            read.load().collect()
        aside = read.option("badRecordsPath", str(tmp_path)).load()
        assert aside.columns[-1] != "_corrupt"
        assert [row.queue_offset for row in aside.collect()] == [0, 5]
        assert len(list(tmp_path.iterdir())) == 1
    with ScriptedCluster("T", script) as cluster:
        read = spark.read.format("rocketmq").option("nameservers", cluster.namesrv)
        shown = read.option("topic", "T").option("mode", "PERMISSIVE").load()
        assert shown.columns[-1] == "_corrupt"
        bad = shown.where("_corrupt IS NOT NULL").orderBy("queue_offset").collect()
        assert [row.queue_offset for row in bad] == [1, 3, 4]
        assert [row.body is None for row in bad] == [True, True, False]
