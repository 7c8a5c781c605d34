"""Store directories on a server of S3: the rows of the folder, in few bytes, and no loss unsaid."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cometmq.core.errors import NoStore
from cometmq.spark.read.losses import DataLoss
from cometmq.spark.schema import NAMES
from cometmq.spark.store import planning
from cometmq.spark.store.options import parse
from cometmq.spark.store.planning import LogPart, QueuePart, plan
from cometmq.spark.store.reader import DamagedLog, LogGone, batches
from cometmq.spark.store.urls import RemoteFile, StoreUnreadable
from tests.architecture.rules import ROOT
from tests.golden import library
from tests.spark.store.s3server import SECRET, S3Server, s3_server
from tests.store.stores import fill, opened, put, run_round

BODY_BYTES = 1_000
MESSAGES = 10_000


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a log of ten files, and a second between any two hundred messages."""
    root = tmp_path_factory.mktemp("large") / "broker-a" / "store"
    store = opened(
        root, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2_000_000
    )
    for number in range(MESSAGES):
        put(store, "t", number % 2, b"%06d" % number + bytes(BODY_BYTES), tag=f"g{number % 4}")
        if number % 200 == 199:
            store.commit()
            store.clock.advance(1_000)  # type: ignore[attr-defined]
    run_round(store, thorough=True)
    store.close()
    return root


@pytest.fixture(scope="module")
def large_url(s3: S3Server, large: Path) -> str:
    return s3.copy(large, "large/broker-a/store")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each read from a file."""
    sizes: list[int] = []
    whole = RemoteFile._fetch

    def counted(file: RemoteFile, start: int, stop: int) -> bytes:
        sizes.append(stop - start)
        return whole(file, start, stop)

    monkeypatch.setattr(RemoteFile, "_fetch", counted)
    return sizes


def table(root: Path | str, **options: object) -> pa.Table:
    """All rows of a read, as its tasks give them."""
    read = parse({"store": str(root), "brokerName": "b", **{k: str(v) for k, v in options.items()}})
    found = [batch for parts in plan(read) for batch in batches(parts, read, NAMES)]
    return pa.Table.from_batches(found)


def offsets(**by_queue: int) -> str:
    return json.dumps({"t": {"b": {name[1:]: offset for name, offset in by_queue.items()}}})


@pytest.mark.parametrize("name", sorted(library.stores()))
def test_a_java_brokers_store(s3: S3Server, tmp_path: Path, name: str) -> None:
    root = library.unpack_store(name, tmp_path)
    url = s3.copy(root, f"golden/{name}")
    for options in ({}, {"onlyQueued": "false"}, {"maxBytesPerPartition": 20_000}):
        assert table(url, **options).equals(table(root, **options))


def test_all_of_a_log_is_read_in_few_requests(
    s3: S3Server, large: Path, large_url: str, fetched: list[int]
) -> None:
    before = s3.requests()
    found = table(large_url)
    assert found.num_rows == MESSAGES
    assert s3.requests() - before < 100
    log_bytes = sum(path.stat().st_size for path in (large / "commitlog").iterdir())
    assert sum(fetched) < log_bytes + (4 << 20)
    assert found.equals(table(large))


def test_some_offsets_are_read_in_few_bytes(
    large: Path, large_url: str, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    asked = {
        "startingOffsets": offsets(q0=1_000, q1=3_000),
        "endingOffsets": offsets(q0=1_010, q1=3_020),
    }
    found = table(large_url, topic="t", **asked)
    assert found.num_rows == 30
    assert len(fetched) < 20
    assert sum(fetched) < 3 << 20
    assert found.equals(table(large, topic="t", **asked))


def test_a_time_is_read_in_few_bytes(
    large: Path, large_url: str, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    times = table(large)["store_timestamp"].cast(pa.int64()).to_pylist()
    late = (max(times) - 1_000_000) // 1_000
    found = table(large_url, startingTimestamp=late)
    assert found.num_rows == 400
    assert sum(fetched) < 5 << 20
    assert found.equals(table(large, startingTimestamp=late))


def test_a_copy_without_its_last_file(s3: S3Server, large: Path, tmp_path: Path) -> None:
    root = shutil.copytree(large, tmp_path / "copy")
    max((root / "commitlog").iterdir()).unlink()
    url = s3.copy(root, "unfinished/store")
    found = table(url)
    assert 0 < found.num_rows < MESSAGES
    assert found.equals(table(root))


def test_a_file_that_is_gone_when_it_is_read(
    s3: S3Server, large: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = s3.copy(large, "gone/store")
    read = parse({"store": url, "brokerName": "b", "maxBytesPerPartition": str(1 << 20)})
    tasks = plan(read)
    (part,) = tasks[3]
    assert isinstance(part, LogPart)
    assert SECRET not in str(part)
    name = Path(part.file.path.partition("?")[0]).name
    s3.system().delete_file(f"gone/store/commitlog/{name}")
    with pytest.raises(LogGone, match=f"s3://gone/store/commitlog/{name} is missing") as caught:
        list(batches(tasks[3], read, NAMES))
    assert (caught.value.start, caught.value.stop) == (part.start, part.stop)
    lax = parse({"store": url, "brokerName": "b", "failOnDataLoss": "false"})
    assert list(batches(tasks[3], lax, NAMES)) == []
    assert f"log_file_missing path=s3://gone/store/commitlog/{name}" in caplog.text


@pytest.mark.parametrize("kept_bytes", [0, 100_000])
@pytest.mark.parametrize("remote", [False, True])
def test_a_file_that_is_shorter_when_it_is_read(
    s3: S3Server, large: Path, tmp_path: Path, kept_bytes: int, remote: bool
) -> None:
    root = shutil.copytree(large, tmp_path / "store")
    place = f"shorter-{kept_bytes}/store"
    url = s3.copy(root, place) if remote else str(root)
    read = parse({"store": url, "brokerName": "b", "maxBytesPerPartition": "300000"})
    tasks = plan(read)
    first = min((root / "commitlog").iterdir())
    os.truncate(first, kept_bytes)
    if remote:
        s3.copy(root, place)
    for task in tasks[:3]:
        with pytest.raises(DamagedLog, match="is damaged at physical offset"):
            list(batches(task, read, NAMES))


@pytest.mark.parametrize("change", ["gone", "shorter"])
@pytest.mark.parametrize("remote", [False, True])
def test_records_whose_file_is_not_whole_when_their_queue_is_read(
    s3: S3Server, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str,
    remote: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    root = shutil.copytree(large, tmp_path / "store")
    place = f"queue-{change}/store"
    asked = {
        "startingOffsets": offsets(q0=1_000, q1=3_000),
        "endingOffsets": offsets(q0=1_010, q1=3_020),
    }
    url = s3.copy(root, place) if remote else str(root)
    read = parse({"store": url, "brokerName": "b", "topic": "t", **asked})
    tasks = plan(read)
    assert all(isinstance(part, QueuePart) for task in tasks for part in task)
    for path in sorted((root / "commitlog").iterdir())[1:-1]:
        if change == "shorter":
            os.truncate(path, 1_000)
        else:
            path.unlink()
            if remote:
                s3.system().delete_file(f"{place}/commitlog/{path.name}")
    if remote:
        s3.copy(root, place)
    with pytest.raises(DataLoss, match=r"offsets 1000 to .* of queue 0"):
        list(batches(tasks[0], read, NAMES))
    lax = parse({"store": url, "brokerName": "b", "topic": "t", "failOnDataLoss": "false"})
    assert list(batches(tasks[0], lax, NAMES)) == []


def text_of(error: BaseException) -> str:
    """All that a traceback would say."""
    return f"{error!r} {error} {error.__cause__!r}"


def test_errors_name_the_url_and_no_secret(s3: S3Server) -> None:
    s3.system().create_dir("empty")
    with pytest.raises(NoStore, match="s3://empty/store is not a store directory") as nothing:
        table(s3.url("empty/store"))
    with pytest.raises(StoreUnreadable, match=r"^s3://no-bucket/store/commitlog cannot") as missing:
        table(s3.url("no-bucket/store"))
    gone = s3.url("empty/store").replace(f":{s3.process.port}", ":1")
    with pytest.raises(StoreUnreadable, match=r"NETWORK_CONNECTION.*; check its") as away:
        table(gone)
    s3.refuse_after(0)
    try:
        with pytest.raises(StoreUnreadable, match=r"s3://empty/store/commitlog cannot") as denied:
            table(s3.url("empty/store", access_key="AKIDOTHER"))
    finally:
        s3.refuse_after(1 << 30)
    for caught in (nothing, missing, away, denied):
        assert not any(part in text_of(caught.value) for part in (SECRET, "hush", "AKID"))


@pytest.mark.spark
def test_tasks_open_the_server_themselves(
    spark: SparkSession, s3: S3Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = opened(tmp_path / "store")
    fill(store, 100)
    store.close()
    url = s3.copy(tmp_path / "store", "spark/broker-a/store")
    found = (
        spark.read.format("rocketmq")
        .option("store", url)
        .option("maxBytesPerPartition", 5_000)
        .schema("broker_name string, queue_id int, queue_offset bigint")
        .load()
    )
    rows: list[Any] = found.collect()
    assert len(rows) == len(set(rows)) == 100
    assert {row.broker_name for row in rows} == {"broker-a"}
    assert found.rdd.getNumPartitions() > 2
    found.explain(True)
    assert "hush" not in capfd.readouterr().out


@pytest.mark.spark
def test_the_page(spark: SparkSession, s3: S3Server, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    put(store, "orders")
    store.commit()
    store.close()
    url = s3.copy(tmp_path / "store", "snapshots/broker-a/store")
    page = (ROOT / "docs" / "spark" / "stores.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(history = .+?)```", page, re.DOTALL)
    names: dict[str, Any] = {"spark": spark}
    exec(code.replace("s3://snapshots/broker-a/store?region=eu-central-1", url), names)
    assert [row.broker_name for row in names["history"].collect()] == ["broker-a"]
