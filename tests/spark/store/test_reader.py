"""What reads of store directories give: all of it, once, and only what is asked for."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.message.record import MAGIC_V1, TransactionType
from cometmq.spark.options import BadOption
from cometmq.spark.read.corrupt import CorruptMessage
from cometmq.spark.read.losses import DataLoss
from cometmq.spark.store import files, planning
from cometmq.spark.store.options import parse
from cometmq.spark.store.planning import LogPart, QueuePart, plan
from cometmq.spark.store.reader import DamagedLog, LogGone, batches
from cometmq.store.layout import HOLE
from cometmq.store.messagestore import MessageStore
from tests.spark.store.reading import Row, planned, rows
from tests.store.stores import fill, log_of, opened, put, run_round

PLACE = ("topic", "queue_id", "queue_offset", "physical_offset", "tags", "store_timestamp")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """700 messages in 3 queues of topic t, 20 of topic u, over some log files; open meanwhile."""
    found = opened(tmp_path / "s")
    fill(found, 700)
    for number in range(20):
        put(found, "u", number % 2, b"other", tag="x")
    found.commit()
    run_round(found, thorough=True)
    yield found
    found.close()


@pytest.fixture(params=["log", "entries"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read, whatever a store's size would choose."""
    way: str = request.param
    monkeypatch.setattr(planning, "FEW_PARTS", 0 if way == "entries" else 1 << 40)
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    return way


def root_of(store: MessageStore) -> Path:
    return Path(store.config.store_path_root_dir)


def places(found: list[Row]) -> set[tuple[str, int, int]]:
    assert len({row["physical_offset"] for row in found}) == len(found)
    return {(row["topic"], row["queue_id"], row["queue_offset"]) for row in found}


def expected(store: MessageStore) -> set[tuple[str, int, int]]:
    return {(each.topic, each.queue_id, each.queue_offset) for each in log_of(store)}


@pytest.mark.parametrize("split_bytes", [1 << 30, 5_000, 700])
def test_every_message_once_however_the_log_is_cut(
    store: MessageStore, way: str, split_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 3_000)
    parts = planned(root_of(store), maxBytesPerPartition=split_bytes)
    assert {type(part) for each in parts for part in each} == {
        QueuePart if way == "entries" else LogPart
    }
    assert (len(parts) > 10) == (split_bytes < 1 << 30)
    found = rows(root_of(store), PLACE, maxBytesPerPartition=split_bytes)
    assert places(found) == expected(store)


def test_tasks_hold_no_more_than_what_is_written(store: MessageStore) -> None:
    total = sum(part.size_bytes for each in planned(root_of(store)) for part in each)
    assert total == store.written_offset


def test_more_tasks_on_request(store: MessageStore) -> None:
    assert len(planned(root_of(store))) == 1
    assert len(planned(root_of(store), minPartitions=6)) >= 6


def test_a_topic_a_tag_an_expression(store: MessageStore, way: str) -> None:
    root = root_of(store)
    assert places(rows(root, PLACE, topic="u")) == {
        place for place in expected(store) if place[0] == "u"
    }
    assert {row["tags"] for row in rows(root, PLACE, filter="g1 || x")} == {"g1", "x"}
    assert len(rows(root, PLACE, filter="g1")) == 175
    assert len(rows(root, PLACE, sqlFilter="TAGS = 'x'")) == 20
    assert not rows(root, PLACE, topic="no such")


def test_an_end_behind_the_end_of_a_queue(store: MessageStore, way: str, tmp_path: Path) -> None:
    root = root_of(store)
    whole = places(rows(root, PLACE, topic="t"))
    last = max(offset for topic, queue, offset in whole if (topic, queue) == ("t", 0))
    exact = json.dumps({"t": {"s": {"0": last + 1}}})
    assert places(rows(root, PLACE, topic="t", endingOffsets=exact)) == whole
    beyond = json.dumps({"t": {"s": {"0": last + 6}}})
    says = rf"'endingOffsets': queue s\|t\|0 .*ends at {last + 1}, before {last + 6}"
    with pytest.raises(BadOption, match=says):
        rows(root, PLACE, topic="t", endingOffsets=beyond)
    lax = {"failOnDataLoss": "false", "dataLossReport": str(tmp_path / "lost")}
    assert places(rows(root, PLACE, topic="t", endingOffsets=beyond, **lax)) == whole
    (report,) = (tmp_path / "lost").iterdir()
    (line,) = map(json.loads, report.read_text().splitlines())
    assert (line["first"], line["messages"]) == (last + 1, 5)


def test_offsets(store: MessageStore, way: str) -> None:
    root = root_of(store)
    start = json.dumps({"t": {"s": {"0": 100, "1": -1}}})
    stop = json.dumps({"t": {"s": {"0": 110, "2": -2}}})
    found = places(rows(root, PLACE, startingOffsets=start, endingOffsets=stop))
    assert {place for place in found if place[:2] == ("t", 0)} == {
        ("t", 0, offset) for offset in range(100, 110)
    }
    assert {place for place in found if place[0] == "t"} == {
        place for place in found if place[:2] == ("t", 0)
    }
    assert len([place for place in found if place[0] == "u"]) == 20
    assert not rows(root, PLACE, startingOffsets="latest")
    for ending in (None, stop):
        beyond = {"startingOffsets": '{"t": {"s": {"0": 100000}}}', "topic": "t"}
        beyond |= {} if ending is None else {"endingOffsets": ending}
        with pytest.raises(BadOption, match=r"s\|t\|0 .*starts at 100000, after its end"):
            rows(root, PLACE, **beyond)
    with pytest.raises(BadOption, match="no queue 9"):
        rows(root, PLACE, startingOffsets='{"t": {"s": {"9": 1}}}')
    with pytest.raises(BadOption, match="broker 'other'"):
        rows(root, PLACE, startingOffsets='{"t": {"other": {"0": 1}}}')


def test_one_queue(store: MessageStore, way: str) -> None:
    found = rows(root_of(store), PLACE, assign=json.dumps({"t": {"s": [1]}}))
    assert places(found) == {place for place in expected(store) if place[:2] == ("t", 1)}


def test_times(tmp_path: Path, way: str) -> None:
    store = opened(tmp_path / "s")
    for number in range(300):
        put(store, "t", number % 3, b"%d" % number)
        store.clock.advance(10)  # type: ignore[attr-defined]
        store.commit()
    store.close()
    everything = rows(root_of(store), PLACE)
    times = sorted(int(row["store_timestamp"].timestamp() * 1000) for row in everything)
    found = rows(root_of(store), PLACE, startingTimestamp=times[100], endingTimestamp=times[200])
    assert len(found) == 100
    one = json.dumps({"t": {"s": {"0": times[150]}}})
    assert len(rows(root_of(store), PLACE, startingOffsetsByTimestamp=one)) == 250


def test_two_stores_at_once(tmp_path: Path, way: str) -> None:
    for name, count in (("a", 10), ("b", 20)):
        store = opened(tmp_path / name / "store")
        fill(store, count)
        store.close()
    both = f"{tmp_path}/a/store, {tmp_path}/b/store/"
    found = rows(both, ("broker_name", "queue_offset"))
    assert [row["broker_name"] for row in found].count("b") == 20
    found = rows(both, ("broker_name",), brokerName="x,y")
    assert {row["broker_name"] for row in found} == {"x", "y"}
    with pytest.raises(BadOption, match="1 brokers for 2 stores"):
        rows(both, brokerName="x")


def test_what_is_in_the_log_and_in_no_queue(tmp_path: Path, way: str) -> None:
    store = opened(tmp_path / "s")
    put(store, "t", 0, b"plain")
    put(store, "t", 0, b"half", sys_flag=TransactionType.PREPARED)
    put(store, "t", 0, b"back", sys_flag=TransactionType.ROLLBACK)
    put(store, "gone", 0, b"gone")
    put(store, "t", 0, b"more")
    store.commit()
    store.close()
    shutil.rmtree(root_of(store) / "consumequeue" / "gone")
    assert [row["body"] for row in rows(root_of(store), ("body",))] == [b"plain", b"more"]
    everything = rows(root_of(store), ("body",), onlyQueued="false")
    assert [row["body"] for row in everything] == [b"plain", b"half", b"back", b"gone", b"more"]


def test_a_log_without_queues(store: MessageStore) -> None:
    shutil.copytree(root_of(store) / "commitlog", root_of(store).parent / "log" / "commitlog")
    root = root_of(store).parent / "log"
    assert places(rows(root, PLACE)) == expected(store)


def test_what_the_queues_have_not_yet(store: MessageStore, way: str) -> None:
    before = expected(store)
    put(store, "t", 0, b"late")
    store.commit()
    found = places(rows(root_of(store), PLACE))
    assert found == expected(store)
    assert len(found) == len(before) + 1


def test_a_long_record(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 300)
    store = opened(tmp_path / "s")
    for size in (10, 5_000, 20, 3_000):
        put(store, "t", 0, bytes(size))
    store.commit()
    store.close()
    found = rows(root_of(store), ("body",), maxBytesPerPartition=400)
    assert sorted(len(row["body"]) for row in found) == [10, 20, 3_000, 5_000]


# ----------------------------------------------------------------------------- what goes wrong


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x55
    path.write_bytes(raw)


def test_damage_names_file_and_offset(store: MessageStore) -> None:
    root = root_of(store)
    records = log_of(store)
    bad = records[50]
    path = root / "commitlog" / f"{0:020d}"
    flip(path, bad.physical_offset + 4)
    with pytest.raises(DamagedLog, match=f"{path}.* offset {bad.physical_offset}: magic"):
        rows(root, PLACE)
    found = places(rows(root, PLACE, mode="PERMISSIVE"))
    assert found == expected_without(records, bad.physical_offset)


def expected_without(records: list, physical: int) -> set[tuple[str, int, int]]:  # type: ignore[type-arg]
    return {
        (each.topic, each.queue_id, each.queue_offset)
        for each in records
        if each.physical_offset != physical
    }


@pytest.mark.parametrize("at", [0, 3, 28, 87])
def test_any_broken_field_of_a_head(store: MessageStore, at: int) -> None:
    records = log_of(store)
    bad = records[50]
    flip(root_of(store) / "commitlog" / f"{0:020d}", bad.physical_offset + at)
    with pytest.raises(DamagedLog, match=str(bad.physical_offset)):
        rows(root_of(store), PLACE)
    found = places(rows(root_of(store), PLACE, mode="PERMISSIVE"))
    assert found == expected_without(records, bad.physical_offset)


def test_an_entry_of_another_message(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FEW_PARTS", 0)
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    path = root_of(store) / "consumequeue" / "t" / "0" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[100:120] = raw[120:140]
    path.write_bytes(raw)
    with pytest.raises(DamagedLog, match="not message 5 of queue 0 of 't'"):
        rows(root_of(store), PLACE, topic="t")


def test_a_wrong_crc_is_found_on_request(store: MessageStore, way: str) -> None:
    bad = log_of(store)[50]
    flip(root_of(store) / "commitlog" / f"{0:020d}", bad.physical_offset + 88)
    assert len(rows(root_of(store), PLACE)) == 720
    with pytest.raises(CorruptMessage, match=f"offset {bad.queue_offset} of queue {bad.queue_id}"):
        rows(root_of(store), PLACE, checkCrc="true")
    aside = root_of(store).parent / "aside"
    assert len(rows(root_of(store), PLACE, checkCrc="true", badRecordsPath=aside)) == 719
    (file,) = aside.iterdir()
    assert json.loads(file.read_text())["offset"] == bad.queue_offset


def test_files_deleted_between_plan_and_task(store: MessageStore, way: str) -> None:
    root = root_of(store)
    for fails in ("true", "false"):
        options = parse({"store": str(root), "topic": "t", "failOnDataLoss": fails})
        parts = plan(options)
        (root / "commitlog" / f"{0:020d}").unlink(missing_ok=True)
        if fails == "true":
            with pytest.raises((LogGone, DataLoss)):
                list(batches([part for each in parts for part in each], options, PLACE))
            shutil.copytree(root, root.parent / "kept")
            (root / "commitlog" / f"{0:020d}").write_bytes(b"")
            (root / "commitlog" / f"{0:020d}").unlink()
        else:
            found = list(batches([part for each in parts for part in each], options, PLACE))
            assert 0 < sum(batch.num_rows for batch in found) < 700


def test_a_file_that_is_missing_between_others(
    store: MessageStore, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = root_of(store)
    files = sorted((root / "commitlog").iterdir())
    kept = log_of(store)
    gone = files[1]
    gone.unlink()
    with pytest.raises((LogGone, DataLoss), match=f"{gone.name} is missing|are gone"):
        rows(root, PLACE)
    low, high = int(gone.name), int(files[2].name)
    rest = [each for each in kept if not low <= each.physical_offset < high]
    assert 0 < len(rest) < len(kept)
    assert len(rows(root, PLACE, failOnDataLoss="false")) == len(rest)
    assert f"log_file_missing path={gone}" in caplog.text or way != "log"


def test_messages_named_by_offset_that_are_gone(store: MessageStore, way: str) -> None:
    root = root_of(store)
    (root / "commitlog" / f"{0:020d}").unlink()
    start = json.dumps({"t": {"s": {"0": 0}}})
    with pytest.raises(DataLoss, match="offsets 0 to"):
        rows(root, PLACE, topic="t", startingOffsets=start)
    report = root.parent / "losses"
    found = rows(
        root, PLACE, topic="t", startingOffsets=start, failOnDataLoss="false",
        dataLossReport=report,
    )  # fmt: skip
    assert found
    (file,) = report.iterdir()
    assert json.loads(file.read_text().splitlines()[0])["first"] == 0
    # Nobody asked for what is gone.
    assert len(rows(root, PLACE, topic="t")) == len(found)


def test_a_magic_in_a_body_misleads_no_task(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    for _ in range(50):
        put(store, "t", 0, MAGIC_V1.to_bytes(4, "big") * 40)
    store.commit()
    store.close()
    found = rows(root_of(store), PLACE, maxBytesPerPartition=150)
    assert len(found) == 50


def test_records_before_a_queues_first_are_of_a_topic_that_was_deleted(
    store: MessageStore, way: str
) -> None:
    path = root_of(store) / "consumequeue" / "t" / "0" / f"{0:020d}"
    path.write_bytes(HOLE * 5 + path.read_bytes()[100:])
    found = places(rows(root_of(store), PLACE))
    assert expected(store) - found == {("t", 0, offset) for offset in range(5)}
