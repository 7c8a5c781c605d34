"""An archive, a store directory and a broker as one: where one ends, the next goes on."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

from cometmq.client.blocking import Client
from cometmq.core.errors import RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.spark.brokers import offsets, wire
from cometmq.spark.options import BadOption
from cometmq.spark.read.losses import DataLoss
from cometmq.spark.read.planning import Range
from cometmq.spark.schema import NAMES, arrow_schema
from cometmq.spark.store.files import ConsumeQueueReader
from cometmq.spark.store.planning import LogPart
from cometmq.spark.store.urls import StoreUnreadable
from cometmq.spark.tiers import archivefiles
from cometmq.spark.tiers.archivefolder import ArchiveFileGone
from cometmq.spark.tiers.holdings import TiersDisagree
from cometmq.spark.tiers.options import parse
from cometmq.spark.tiers.planning import plan
from cometmq.spark.tiers.reader import TieredReader
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.compat.anchor import wait_until
from tests.spark.store.s3server import s3_server
from tests.spark.tiers import tiered
from tests.spark.tiers.tiered import Row, live_rows, places, rows, some, texts
from tests.spark.topics import access, delete_topic, make_topic

TOPIC = "Tiers"
BODY = b"x" * 2_000
SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Tiers:
    """A broker with 80 messages in each of two queues, its store when it had 60 of each, and all
    rows as the network gives them."""

    cluster: Cluster
    store: Path
    everything: list[Row]

    def options(self, **more: object) -> dict[str, object]:
        """The options of a read of store and broker."""
        given = {"topic": TOPIC, "nameservers": self.cluster.namesrv, "store": self.store}
        return {**given, "brokerName": "broker-a", **more}


def send(client: Client, queue: MessageQueue, start: int, stop: int) -> None:
    """Messages with and without tags, keys, properties and packed bodies."""
    for at in range(start, stop):
        body = BODY if at % 10 else b"packed" * 1_000
        tag, keys = ("even" if at % 2 == 0 else ""), [f"k{at}"] * (at % 3 > 0)
        more = {"number": str(at), "of": "ü"} if at % 4 else {}
        client.send(queue.topic, body, tag=tag, keys=keys, queue=queue, properties=more)


def stop_of(cluster: Cluster, key: tuple[str, int]) -> int:
    return ConsumeQueueReader(str(cluster.store), *key).stop()


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiers]:
    home = tmp_path_factory.mktemp("tiers")
    settings = {"fileReservedTime": 0, "flushConsumeQueueThoroughInterval": 0,
                "mappedFileSizeCommitLog": 65_536}  # fmt: skip
    with cluster_in_thread(home, **settings) as cluster, Client(cluster.namesrv) as client:
        queues = make_topic(client, TOPIC, 2)
        for queue in queues:
            send(client, queue, 0, 60)
        keys = [(queue.topic, queue.queue_id) for queue in queues]
        wait_until(lambda: {stop_of(cluster, key) for key in keys} == {60}, "the queues on disk")
        for folder in ("commitlog", "consumequeue"):
            shutil.copytree(cluster.store / folder, home / "snapshot" / folder)
        for queue in queues:
            send(client, queue, 60, 80)
        yield Tiers(cluster, home / "snapshot", live_rows(cluster.namesrv, TOPIC))


def portions(options: dict[str, object]) -> dict[str, list[tuple[int, int, int]]]:
    """Which tier gives what: queue and offsets."""
    planned = plan(parse(texts(options)))
    archived = [part for each in planned.archive for part in each.ranges]
    stored = [(part.queue_id, part.start, part.stop) for part in planned.stores]  # type: ignore[union-attr]
    return {
        "archive": sorted(map(span, archived)),
        "store": sorted(stored),
        "live": list(map(span, planned.live)),
    }


def span(part: Range) -> tuple[int, int, int]:
    return (part.queue.queue_id, part.start, part.stop)


@pytest.fixture
def archived(tiers: Tiers, tmp_path: Path) -> dict[str, object]:
    """A read of three tiers. The archive ends in the middle of each queue; some of its messages are
    twice in one file, some in two files."""
    found = tiers.everything
    first = [*some(found, 0, range(40)), *some(found, 1, range(25)), *some(found, 1, range(3, 9))]
    tiered.archive(tmp_path / "archive", first)
    tiered.archive(tmp_path / "archive", some(found, 1, range(20, 30)), batch=1)
    return tiers.options(archive=tmp_path / "archive")


def test_every_tier_gives_what_the_tiers_above_lack(
    tiers: Tiers, archived: dict[str, object]
) -> None:
    assert portions(archived) == {
        "archive": [(0, 0, 40), (1, 0, 25), (1, 25, 30)],
        "store": [(0, 40, 60), (1, 30, 60)],
        "live": [(0, 60, 80), (1, 60, 80)],
    }
    assert rows(archived) == tiers.everything
    assert rows({**archived, "minPartitions": 9}) == tiers.everything


def test_a_store_on_s3_is_as_good_as_the_folder(tiers: Tiers, tmp_path: Path) -> None:
    with s3_server(tmp_path) as s3:
        url = s3.copy(tiers.store, "snapshots/broker-a/store")
        assert rows(tiers.options(store=url)) == tiers.everything
        assert portions(tiers.options(store=url)) == portions(tiers.options())


def test_an_archive_on_s3_is_as_good_as_the_folder(
    tiers: Tiers, archived: dict[str, object], tmp_path: Path
) -> None:
    with s3_server(tmp_path) as s3:
        url = s3.copy(tmp_path / "archive", "history/some archive")
        remote = {**archived, "archive": url}
        assert portions(remote) == portions(archived)
        for chosen in ({}, {"filter": "even"}, {"minPartitions": 9}):
            assert rows({**remote, **chosen}) == rows({**archived, **chosen})
        time = int(tiers.everything[20]["store_timestamp"].timestamp() * 1000)
        since = {"startingTimestamp": time}
        assert rows({**remote, **since}) == rows({**archived, **since})
        alone = {"archive": url}
        assert rows(alone) == rows({"archive": archived["archive"]})
        reader = TieredReader(parse(texts(alone)), NAMES)
        (partition,) = reader.partitions()
        s3.system().delete_dir_contents("history/some archive/data")
        with pytest.raises(ArchiveFileGone, match="s3://history/some archive/data/batch=") as gone:
            list(reader.read(partition))
        with pytest.raises(BadOption, match="no archive at s3://history/none") as none:
            rows({"archive": s3.url("history/none")})
        away = url.replace(f":{s3.process.port}", ":1")
        with pytest.raises(StoreUnreadable, match=r"^s3://history/some archive.*NETWORK") as dark:
            rows({"archive": away})
    for caught in (gone, none, dark):
        assert "hush" not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert "hush" not in repr(partition.value)


def test_columns_and_filters_are_those_of_the_network(
    tiers: Tiers, archived: dict[str, object]
) -> None:
    namesrv = tiers.cluster.namesrv
    for chosen in (
        {"filter": "even"},
        {"filter": "even || odd"},
        {"sqlFilter": "number > 17 AND of = 'ü' OR TAGS IS NULL"},
    ):
        found = rows({**archived, **chosen})
        assert found == live_rows(namesrv, TOPIC, **chosen)
        assert 0 < len(found) < len(tiers.everything)
    few = ("body", "queue_id", "topic", "_corrupt", "queue_offset", "broker_name")
    for row, whole in zip(rows(archived, few), tiers.everything, strict=True):
        assert row == {name: whole.get(name) for name in few}


def test_positions(tiers: Tiers, archived: dict[str, object]) -> None:
    namesrv, everything = tiers.cluster.namesrv, tiers.everything
    times = [int(row["store_timestamp"].timestamp() * 1000) for row in everything]
    for at in (0, 20, 39, 40, 59, 70, 80 + 27, 80 + 45, 80 + 79):
        for side in ("startingTimestamp", "endingTimestamp"):
            chosen = {side: times[at]}
            assert rows({**archived, **chosen}) == live_rows(namesrv, TOPIC, **chosen)
    later = {"startingTimestamp": times[-1] + 1}
    assert rows({**archived, **later}) == []
    with pytest.raises(BadOption, match="no message stored at"):
        rows({**archived, **later, "startingOffsetsByTimestampStrategy": "error"})
    start = json.dumps({TOPIC: {"broker-a": {"0": 30, "1": -1}}})
    end = json.dumps({TOPIC: {"broker-a": {"0": 65}}})
    found = rows({**archived, "startingOffsets": start, "endingOffsets": end})
    assert places(found) == [("broker-a", 0, at) for at in range(30, 65)]
    reached = access(namesrv)
    offsets.commit("tiers", {MessageQueue(TOPIC, "broker-a", 0): 35}, reached)
    group = {"startingOffsets": "group", "consumerGroup": "tiers", "uncommittedOffsets": "latest"}
    found = rows({**archived, **group})
    assert places(found) == [("broker-a", 0, at) for at in range(35, 80)]


def test_named_offsets_that_are_nowhere(tiers: Tiers, archived: dict[str, object]) -> None:
    beyond = json.dumps({TOPIC: {"broker-a": {"0": 90}}})
    with pytest.raises(BadOption, match="ends at 80, before 90"):
        rows({**archived, "endingOffsets": beyond})
    found = rows({**archived, "endingOffsets": beyond, "failOnDataLoss": "false"})
    assert found == tiers.everything
    strange = json.dumps({TOPIC: {"broker-x": {"0": 1}}})
    with pytest.raises(BadOption, match=r"no tier has queue broker-x\|Tiers\|0"):
        rows({**archived, "startingOffsets": strange})
    assign = json.dumps({TOPIC: {"broker-a": [1]}})
    one = {name: value for name, value in archived.items() if name != "topic"}
    assert rows({**one, "assign": assign}) == [r for r in tiers.everything if r["queue_id"] == 1]
    with pytest.raises(BadOption, match="no tier has queue 7"):
        rows({**one, "assign": json.dumps({TOPIC: {"broker-a": [7]}})})
    with pytest.raises(RouteNotFound):
        rows({**archived, "topic": "Misspelt"})


def test_pushed_filters(tiers: Tiers, archived: dict[str, object]) -> None:
    reader = TieredReader(parse(texts({**archived, "pushFilters": "true"})), NAMES)
    moment = tiers.everything[50]["store_timestamp"]
    asked = [
        EqualTo(("queue_id",), 0),
        EqualTo(("tags",), "even"),
        GreaterThanOrEqual(("store_timestamp",), moment),
    ]
    assert list(reader.pushFilters(asked)) == [asked[2]]
    found = tiered.in_order(
        [row for part in reader.partitions() for each in reader.read(part)
         for row in each.to_pylist()]
    )  # fmt: skip
    assert places(found) == [("broker-a", 0, at) for at in range(0, 80, 2)]


def test_an_empty_tier(tiers: Tiers, tmp_path: Path) -> None:
    empty = tiered.archive(tmp_path / "archive", [])
    assert rows(tiers.options(archive=empty)) == tiers.everything
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    of_all = tiered.archive(tmp_path / "whole", tiers.everything)
    assert rows(tiers.options(archive=of_all, store=tmp_path / "store")) == tiers.everything
    with pytest.raises(BadOption, match="there is no archive at"):
        rows(tiers.options(archive=tmp_path / "none"))


def test_a_store_without_queues(tiers: Tiers, archived: dict[str, object], tmp_path: Path) -> None:
    shutil.copytree(tiers.store / "commitlog", tmp_path / "log" / "commitlog")
    of_log = {**archived, "store": tmp_path / "log"}
    assert rows(of_log) == tiers.everything
    assert {type(part) for part in plan(parse(texts(of_log))).stores} == {LogPart}


def test_a_broker_that_was_taken_out_of_service(tiers: Tiers, tmp_path: Path) -> None:
    gone = [{**row, "broker_name": "broker-0"} for row in tiers.everything]
    folder = tiered.archive(tmp_path / "archive", gone[:70])
    shutil.copytree(tiers.store, tmp_path / "store")
    stores = f"{tiers.store},{tmp_path / 'store'}"
    options = tiers.options(archive=folder, store=stores, brokerName="broker-a,broker-0")
    # The archive has 70 messages of queue 0; the store has 60 of each queue.
    of_gone = [row for row in gone if row["queue_offset"] < 60 or row in gone[:70]]
    assert rows(options) == of_gone + tiers.everything
    start = json.dumps({TOPIC: {"broker-0": {"0": 65, "1": 58}, "broker-a": {"0": 78, "1": -1}}})
    found = rows({**options, "startingOffsets": start})
    assert places(found) == [
        *(("broker-0", 0, at) for at in range(65, 70)),
        *(("broker-0", 1, at) for at in range(58, 60)),
        *(("broker-a", 0, at) for at in range(78, 80)),
    ]


def test_an_archive_alone_and_with_a_store(tiers: Tiers, archived: dict[str, object]) -> None:
    alone = {"archive": archived["archive"]}
    assert places(rows(alone)) == [
        *(("broker-a", 0, at) for at in range(40)),
        *(("broker-a", 1, at) for at in range(30)),
    ]
    assert rows({**alone, "topic": "Another"}) == []
    both = {name: value for name, value in archived.items() if name != "nameservers"}
    assert rows(both) == [row for row in tiers.everything if row["queue_offset"] < 60]


def test_the_head_of_a_store_has_expired(tiers: Tiers, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(tiers.store, store)
    for path in sorted((store / "commitlog").iterdir())[:3]:
        path.unlink()
    left = rows({"archive": tiered.archive(tmp_path / "none", []), "store": store,
                 "brokerName": "broker-a", "topic": TOPIC})  # fmt: skip
    assert left == [row for row in tiers.everything if row["queue_offset"] < 60][-len(left) :]
    assert 0 < len(left) < 120
    options = tiers.options(store=store)
    assert rows(options) == tiers.everything
    assert portions(options)["live"][0][:2] == (0, 0)


def test_a_store_with_a_gap(tiers: Tiers, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(tiers.store, store)
    sorted((store / "commitlog").iterdir())[1].unlink()
    assert rows(tiers.options(store=store)) == tiers.everything
    given = portions(tiers.options(store=store))
    assert [part for part in given["live"] if part[2] < 60]
    # The times around the gap are those of messages that are there.
    times = [int(row["store_timestamp"].timestamp() * 1000) for row in tiers.everything]
    for at_ms in times[:60:7]:
        found = rows(tiers.options(store=store, startingTimestamp=at_ms))
        assert found == [
            row for row, ms in zip(tiers.everything, times, strict=True) if ms >= at_ms
        ]


def test_an_archive_with_a_gap(tiers: Tiers, tmp_path: Path) -> None:
    kept = [row for row in tiers.everything if row["queue_offset"] not in {7, 8, 30}]
    full = tiered.archive(tmp_path / "archive", kept)
    options = tiers.options(archive=full)
    assert rows(options) == tiers.everything
    assert portions(options)["store"] == [(q, *run) for q in (0, 1) for run in ((7, 9), (30, 31))]
    report = tmp_path / "lost"
    alone = {"archive": full, "topic": TOPIC}
    with pytest.raises(DataLoss, match="offsets 7 to 8 of queue 0"):
        rows(alone)
    lost = {"failOnDataLoss": "false", "dataLossReport": report}
    assert rows({**alone, **lost}) == kept
    lines = [
        json.loads(line) for path in report.iterdir() for line in path.read_text().splitlines()
    ]
    assert [(line["queue"], line["first"], line["messages"]) for line in lines] == [
        *((0, 7, 2), (0, 30, 1)),
        *((1, 7, 2), (1, 30, 1)),
    ]


def test_a_message_twice_in_a_file(
    tiers: Tiers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archivefiles, "BATCH_ROWS_MAX", 7)
    twice = tiered.archive(tmp_path, [*tiers.everything, *reversed(tiers.everything)])
    assert rows({"archive": twice}) == tiers.everything


def test_a_delta_archive(tiers: Tiers, tmp_path: Path) -> None:
    topic, table_path = "%RETRY%tiers", tmp_path / "table"
    found = [{**row, "topic": topic, "day": "2026-01-31"} for row in tiers.everything]
    schema = arrow_schema().append(pa.field("day", pa.string()))
    for at in range(0, 160, 40):
        table = pa.Table.from_pylist(found[at : at + 40], schema)
        write_deltalake(table_path, table, partition_by=["topic", "day"], mode="append")
    read = {"archive": table_path, "topic": topic}
    assert [{**row, "topic": TOPIC} for row in rows(read)] == tiers.everything
    DeltaTable(table_path).optimize.compact()
    assert [{**row, "topic": TOPIC} for row in rows(read)] == tiers.everything
    with s3_server(tmp_path) as s3:
        remote = {**read, "archive": s3.copy(tmp_path / "table", "lake/table")}
        assert [{**row, "topic": TOPIC} for row in rows(remote)] == tiers.everything
        s3.system().delete_dir_contents("lake/table/_delta_log")
        with s3.system().open_output_stream("lake/table/_delta_log/junk") as out:
            out.write(b"junk")
        with pytest.raises(StoreUnreadable, match=r"^s3://lake/table cannot be read") as caught:
            rows(remote)
        assert "hush" not in f"{caught.value!r} {caught.value.__cause__!r}"
    DeltaTable(table_path).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(BadOption, match="has deletion vectors"):
        rows(read)


def test_files_that_go_or_change_after_the_plan(tiers: Tiers, tmp_path: Path) -> None:
    folder = tiered.archive(tmp_path / "archive", tiers.everything)
    reader = TieredReader(parse(texts(tiers.options(archive=folder))), NAMES)
    (partition,) = reader.partitions()
    (path,) = folder.rglob("*.parquet")
    path.unlink()
    with pytest.raises(ArchiveFileGone, match="run the query again"):
        list(reader.read(partition))
    other = tiered.archive(tmp_path / "other", tiers.everything[:79])
    shutil.copy(next(other.rglob("*.parquet")), path)
    with pytest.raises(DataLoss, match="offsets 79 to 79 of queue 0"):
        list(reader.read(partition))


def test_the_store_of_another_broker(tiers: Tiers, tmp_path: Path) -> None:
    later = [
        {**row, "store_timestamp": row["store_timestamp"] + SECOND} for row in tiers.everything
    ]
    folder = tiered.archive(tmp_path / "archive", later)
    options = {"archive": folder, "store": tiers.store, "brokerName": "broker-a", "topic": TOPIC}
    with pytest.raises(TiersDisagree, match="archive and store disagree on offset 59 of queue 0"):
        rows(options)
    assert rows({**options, "failOnDataLoss": "false"}) == later


def test_a_topic_that_was_created_again(tiers: Tiers, tmp_path: Path) -> None:
    cluster, topic = tiers.cluster, "TiersAgain"
    with Client(cluster.namesrv) as client:
        (queue,) = make_topic(client, topic, 1)
        send(client, queue, 0, 10)
        folder = tiered.archive(tmp_path / "archive", live_rows(cluster.namesrv, topic))
        delete_topic(client, topic)
        (queue,) = make_topic(client, topic, 1)
        send(client, queue, 0, 3)
    options = {"topic": topic, "nameservers": cluster.namesrv, "archive": folder}
    with pytest.raises(TiersDisagree, match="archive and live disagree on offset 9 of queue 0"):
        rows(options)
    assert len(rows({**options, "failOnDataLoss": "false"})) == 10
    with Client(cluster.namesrv) as client:
        send(client, queue, 3, 20)
    with pytest.raises(TiersDisagree, match="archive and live disagree on offset 9 of queue 0"):
        rows(options)


def test_the_broker_forgets_what_the_others_keep(tiers: Tiers, tmp_path: Path) -> None:
    """The last test: it empties the broker."""
    queues = [MessageQueue(TOPIC, "broker-a", at) for at in range(2)]
    reached = access(tiers.cluster.namesrv)
    code = RequestCode.DELETE_EXPIRED_COMMITLOG

    def has_expired() -> bool:
        broker = tiers.cluster.broker
        wire.checked(broker, code, wire.call(broker, code, None, reached))
        return offsets.earliest(queues, reached)[queues[1]] > 60

    wait_until(has_expired, "the broker's first messages go")
    first = offsets.earliest(queues, reached)
    assert first[queues[0]] > 60
    newest = [row for row in tiers.everything if row["queue_offset"] >= 60]
    archive = tiered.archive(tmp_path / "archive", newest)
    assert rows(tiers.options(archive=archive)) == tiers.everything
    with pytest.raises(DataLoss, match=f"offsets 60 to {first[queues[0]] - 1} of queue 0"):
        rows(tiers.options())
    left = rows(tiers.options(failOnDataLoss="false"))
    assert left == [
        row
        for row in tiers.everything
        if row["queue_offset"] < 60 or row["queue_offset"] >= first[queues[row["queue_id"]]]
    ]
