"""Jobs on a cluster that asks for an account and TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cometmq.admin.api import Admin
from cometmq.client.blocking import Client
from cometmq.core.errors import BrokerRefused, CometError
from cometmq.spark.jobs import dlq, replay, stats
from cometmq.spark.jobs.inputs import InputOptions
from cometmq.spark.jobs.reach import Reach
from cometmq.spark.jobs.verify import VerifyOptions
from cometmq.spark.options import BadOption
from cometmq.testing.cluster import cluster_in_thread
from tests.cluster.secured import ADMIN, make_files
from tests.spark.jobs.dying import kill_all
from tests.spark.topics import make_topic


def credentials_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "tools.yml"
    path.touch(0o600)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_fields_become_options_of_the_source(tmp_path: Path) -> None:
    path = credentials_file(tmp_path, "accessKey: a\nsecretKey: hush\nsecurityToken: t\n")
    assert Reach().source_options() == {}
    assert Reach(tls=True).source_options() == {"useTls": "true"}
    made = Reach(
        credentials=path,
        tls_ca="ca.pem",
        tls_check_host=False,
        read_options={"requestTimeoutMs": "5", "filter": "x"},
    )
    reaching = {
        "accessKey": "a", "secretKey": "hush", "securityToken": "t", "useTls": "true",
        "tlsCaFile": "ca.pem", "tlsCheckHostname": "false", "requestTimeoutMs": "5",
    }  # fmt: skip
    assert made.source_options() == reaching | {"filter": "x"}
    assert made.access_options() == reaching
    assert "hush" not in repr(made)


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("accessKey: a\n", 0o600, "must not be empty"),
        ("accessKey: a\nsecretKey: hush\n", 0o644, "run chmod 600"),
    ],
)
def test_a_file_that_cannot_be_used(text: str, mode: int, told: str, tmp_path: Path) -> None:
    path = credentials_file(tmp_path, text, mode)
    with pytest.raises(BadOption, match=told) as raised:
        Reach(credentials=path).source_options()
    assert "hush" not in str(raised.value)


def test_one_way_at_a_time() -> None:
    with pytest.raises(BadOption, match="'USETLS': is given in two ways"):
        Reach(tls=True, read_options={"USETLS": "false"}).source_options()


def test_another_cluster_gets_no_account_of_this_one(tmp_path: Path) -> None:
    path = credentials_file(tmp_path, "accessKey: a\nsecretKey: hush\n")
    given: dict[str, Any] = {"nameservers": "a:1", "credentials": path, "tls": True}
    other = VerifyOptions(**given, other_nameservers="b:1", read_options={"filter": "x"}).other()
    assert other.source_options() == {"useTls": "true", "filter": "x"}
    assert VerifyOptions(
        **given, other_nameservers="b:1", other_credentials=path
    ).other().source_options() == {"accessKey": "a", "secretKey": "hush", "useTls": "true"}
    here = {"accessKey": "a", "secretKey": "hush", "useTls": "true"}
    assert replay.ReplayOptions(**given, to="t").target_options() == here
    there = replay.ReplayOptions(**given, to="t", to_namesrv="b:1")
    assert there.target_options() == {"useTls": "true"}
    there = replay.ReplayOptions(**given, to="t", to_namesrv="b:1", to_credentials=path)
    assert there.target_options() == here


@dataclass(frozen=True)
class Guarded:
    namesrv: str
    options: dict[str, Any]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Three dead letters of group g, on servers that ask for TLS and an account."""
    folder = tmp_path_factory.mktemp("guarded")
    files = make_files(folder)
    settings = {**files.server, **files.client, **files.accounts, "useTLS": "true"}
    with cluster_in_thread(folder, **settings) as cluster:
        with Client(cluster.namesrv, credentials=ADMIN, tls=files.options) as client:
            make_topic(client, "Guarded", 1)
            for at in range(3):
                client.send("Guarded", b"%d" % at)
            kill_all(client, "Guarded", "g", 3)
        yield Guarded(
            cluster.namesrv,
            {"credentials": files.path("tools.yml"), "tls_ca": files.path("ca.pem")},
        )


@pytest.mark.spark
def test_dead_letters(spark: SparkSession, guarded: Guarded) -> None:
    options = dlq.DlqOptions(
        nameservers=guarded.namesrv, group="g", redrive=True, **guarded.options
    )
    report = dlq.run(spark, options)
    assert (report.dead, report.sent, report.missing) == (3, 3, 0)


@pytest.mark.spark
def test_statistics(spark: SparkSession, guarded: Guarded, tmp_path: Path) -> None:
    options = stats.StatsOptions(
        nameservers=guarded.namesrv, topics=("Guarded",), output=tmp_path, **guarded.options
    )
    report = stats.run(spark, options)
    assert report.topics[0].messages >= 3
    assert [lag.group for lag in report.groups] == ["g"]


@pytest.mark.spark
def test_replays(spark: SparkSession, guarded: Guarded) -> None:
    options = replay.ReplayOptions(
        nameservers=guarded.namesrv, topics=("Guarded",), to="Guarded", **guarded.options
    )
    assert replay.run(spark, options).sent >= 3


@pytest.mark.parametrize("left_out", ["credentials", "tls_ca"])
def test_a_stranger_is_refused(guarded: Guarded, left_out: str) -> None:
    given = {name: value for name, value in guarded.options.items() if name != left_out}
    inputs = InputOptions(nameservers=guarded.namesrv, **given)
    with inputs.connect(guarded.namesrv) as client:
        admin = Admin(client.inner.session)
        with pytest.raises(BrokerRefused if left_out == "credentials" else CometError):
            client.wait(admin.consumer_progress("g", "Guarded"))
