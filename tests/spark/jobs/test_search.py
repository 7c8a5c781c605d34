"""Messages found in several places at once, each told once."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cometmq.cli.commands import spark as command
from cometmq.cli.main import main
from cometmq.client.blocking import Client
from cometmq.spark.jobs import archive, search
from cometmq.spark.options import BadOption
from cometmq.testing.cluster import Cluster
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark

#: Texts with the same hash in Java, which is all that an index keeps of them.
ALIKE = ("AaAa", "BBBB")


@pytest.fixture(scope="module")
def archived(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """A topic of which the first messages are archived, too: name server and archive."""
    namesrv = cometmq_session_cluster.namesrv
    target = str(tmp_path_factory.mktemp("search") / "archive")
    with Client(namesrv) as client:
        (queue, _) = make_topic(client, "Search", 2)
        client.send("Search", b"first", keys=[ALIKE[0], "both"], tag="a", queue=queue)
        client.send("Search", b"second", keys=[ALIKE[1], "both"], tag="b", queue=queue)
        options = archive.ArchiveOptions(nameservers=namesrv, topics=("Search",), target=target)
        archive.run(spark, options)
        client.send("Search", b"\xff third", keys=["both"], tag="b", queue=queue)
    return namesrv, target


def found(spark: SparkSession, archived: tuple[str, str], **words: Any) -> list[str]:
    options = search.SearchOptions(
        nameservers=archived[0], archive=archived[1], topics=("Search",), **words
    )
    return [f"{hit.offset} {hit.places}" for hit in search.run(spark, options).hits]


def test_by_every_property(spark: SparkSession, archived: tuple[str, str]) -> None:
    both = "archive,live"
    assert found(spark, archived, key="both") == [f"0 {both}", f"1 {both}", "2 live"]
    assert found(spark, archived, key=ALIKE[0]) == [f"0 {both}"]
    assert found(spark, archived, tag="b") == [f"1 {both}", "2 live"]
    assert found(spark, archived, tag="b", text="thi") == ["2 live"]
    assert found(spark, archived, key="bot") == []


def test_a_store_that_a_broker_writes_to(
    spark: SparkSession, archived: tuple[str, str], cometmq_session_cluster: Cluster
) -> None:
    store = str(cometmq_session_cluster.store)
    words = {"stores": (store,), "brokers": ("broker-a",)}
    everywhere = ["0 archive,live,store", "1 archive,live,store", "2 live,store"]
    assert found(spark, archived, key="both", **words) == everywhere
    alone = search.SearchOptions(stores=(store,), topics=("Search",), text="third")
    (hit,) = search.run(spark, alone).hits
    assert (hit.offset, hit.places, hit.tag) == (2, "store", "b")


def test_by_id_and_time(spark: SparkSession, archived: tuple[str, str]) -> None:
    options = search.SearchOptions(archive=archived[1], key="both")
    (first, second) = search.run(spark, options).hits
    assert found(spark, archived, message_id=second.id) == ["1 archive,live"]
    assert (first.body, first.is_base64, first.tag) == ("first", False, "a")
    at_ms = round(datetime.fromisoformat(second.stored).timestamp() * 1000)
    later = search.SearchOptions(archive=archived[1], since_ms=at_ms)
    assert second in search.run(spark, later).hits
    earlier = search.SearchOptions(archive=archived[1], until_ms=at_ms)
    assert second not in search.run(spark, earlier).hits


def test_a_limit_and_the_count(spark: SparkSession, archived: tuple[str, str]) -> None:
    options = search.SearchOptions(archive=archived[1], key="both", limit=1)
    report = search.run(spark, options)
    assert (len(report.hits), report.found) == (1, 2)


def test_from_the_command_line(
    spark: SparkSession,
    archived: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "_session", lambda *_: spark)
    monkeypatch.setattr(command, "_stop", lambda _: None)
    words = ["spark", "search", "-n", archived[0], "--topic", "Search", "--tag", "b"]
    assert main([*words, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["body"] for line in lines] == ["second", "/yB0aGlyZA=="]
    assert [line["is_base64"] for line in lines] == [False, True]
    assert main(words) == 0
    assert "found" in capsys.readouterr().out
    assert main(["spark", "search", "-n", archived[0], "--key", "x"]) == 2
    assert "topic" in capsys.readouterr().err
    missing = ["spark", "search", "-n", archived[0], "--topic", "Nowhere", "--key", "x"]
    assert main(missing) == 1
    assert "Nowhere" in capsys.readouterr().err


def test_something_to_look_for_is_needed(spark: SparkSession) -> None:
    with pytest.raises(BadOption, match="no condition is given"):
        search.run(spark, search.SearchOptions(archive="x"))
    with pytest.raises(BadOption, match="no input is given"):
        search.run(spark, search.SearchOptions(key="x"))


def test_readable(tmp_path: Path) -> None:
    assert search.readable("ü".encode()) == ("ü", False)
    assert search.readable(b"\xff") == ("/w==", True)
