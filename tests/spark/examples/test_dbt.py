"""The session on the page about dbt runs word by word, and DuckDB has what the messages say."""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.blocking import Client
from cometmq.testing.cluster import Cluster
from examples.dbt.orders import TOPIC, OrderEvent, events
from tests.architecture.rules import ROOT
from tests.compat.anchor import cache_dir
from tests.packaging.tools import locked_packages, run
from tests.transcript import Shell, Step, matches, read_page

pytestmark = pytest.mark.spark

EXAMPLE = ROOT / "examples" / "dbt"
PAGE = ROOT / "docs" / "spark" / "dbt.md"
LOCK = ROOT / "requirements" / "dbt.lock"
CACHE = str(cache_dir())  # at import: tests of Spark have an empty one

#: A job of Spark starts a JVM.
SPARK_S = 300

QUERY = """
import duckdb, json, sys
with duckdb.connect(sys.argv[1]) as database:
    print(json.dumps(database.execute(sys.argv[2]).fetchall()))
"""
#: dbt begins its lines with the time.
CLOCK = re.compile(r"^\d\d:\d\d:\d\d  ")


@dataclass(frozen=True)
class Project:
    """A copy of the example, with an environment for dbt as the page makes one."""

    folder: Path
    shell: Shell

    def run(self, step: Step) -> list[str]:
        """Run a command; return what it printed, without dbt's times."""
        return [CLOCK.sub("", line) for line in self.shell.run(step)]

    def dbt(self, words: str) -> list[str]:
        """Run dbt; return what it printed."""
        return self.run(Step(f"dbt-env/bin/dbt {words}", ()))

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in the database that dbt left; return its rows."""
        python = str(self.folder / "dbt-env" / "bin" / "python")
        text = run([python, "-c", QUERY, str(self.folder / "shop.duckdb"), statement])
        return [tuple(row) for row in json.loads(text)]


@contextmanager
def started(folder: Path, namesrv: str) -> Iterator[Project]:
    """A copy of the example whose `dbt-env` has the locked packages and CometMQ, and no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMETMQ_TEST_CACHE", CACHE)
        packages = locked_packages(LOCK)
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    programs = folder / "dbt-env" / "bin"
    programs.mkdir(parents=True)
    python = f'PYTHONPATH="{packages}:{ROOT / "src"}" exec "{sys.executable}" -S'
    for name, words in (("python", '"$@"'), ("dbt", '-m dbt.cli.main "$@"')):
        (programs / name).write_text(f"#!/bin/sh\n{python} {words}\n")
        (programs / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield Project(folder, Shell(folder, {"127.0.0.1:9876": namesrv}, limit_s=SPARK_S))


def failed_tests(printed: list[str]) -> set[str]:
    """The names of the tests that dbt says failed."""
    return {name for line in printed for name in re.findall(r"^\d+ of \d+ FAIL \d+ (\w+)", line)}


def newest(all_events: list[OrderEvent]) -> dict[str, tuple[str, int]]:
    """The state and the price of each order."""
    return {event.order: (event.state, event.cents) for event in all_events}


def test_each_message_is_in_the_models_once(cometmq_cluster: Cluster, tmp_path: Path) -> None:
    steps = read_page(PAGE.read_text(encoding="utf-8")).steps
    with started(tmp_path / "dbt", cometmq_cluster.namesrv) as project:
        for step in steps:
            printed = project.run(step)
            assert project.shell.exit_code == 0, printed
            shown = tuple(CLOCK.sub("", line) for line in step.shown)
            assert matches(shown, printed), (step.command, printed)
        sent = [*events(1), *events(2)]
        stored = project.sql("select order_id, state, cents from order_events")
        assert Counter(stored) == Counter(map(astuple, sent))
        orders = project.sql("select order_id, state, cents from orders")
        assert {order: (state, cents) for order, state, cents in orders} == newest(sent)

        check_that_faults_are_found(project)
        leave_an_attempt(project.folder / "landing" / "orders" / "data")
        files = f"{project.folder}/landing/orders/data/*/*/*/*.parquet"
        [(all_rows,)] = project.sql(f"select count(*) from read_parquet('{files}')")
        assert all_rows > len(sent)

        with Client(cometmq_cluster.namesrv) as client:
            client.send(TOPIC, b"\xff is no order")
        for word in ("topic show", "spark archive"):
            project.run(next(step for step in steps if word in step.command))
        printed = project.dbt("build")
        assert failed_tests(printed) == {
            f"not_null_order_events_{column}" for column in ("cents", "order_id", "state")
        }, printed
        [counts] = project.sql("select count(*), count(distinct order_event_id) from order_events")
        assert counts == (len(sent) + 1, len(sent) + 1)


def check_that_faults_are_found(project: Project) -> None:
    """Take a message away, and put it back twice: the example's tests find both."""
    one = "order_event_id = (select min(order_event_id) from order_events)"
    project.sql(f"create table taken as select * from order_events where {one}")
    project.sql(f"delete from order_events where {one}")
    assert failed_tests(project.dbt("test")) == {"every_message_once"}
    for _ in range(2):
        project.sql("insert into order_events select * from taken")
    found = failed_tests(project.dbt("test"))
    assert found == {"every_message_once", "unique_order_events_order_event_id"}
    one = "order_event_id = (select order_event_id from taken)"
    project.sql(f"delete from order_events where {one}")
    project.sql("insert into order_events select * from taken")
    project.sql("drop table taken")


def leave_an_attempt(data: Path) -> None:
    """Add what a killed attempt at a batch leaves: a file that no batch names."""
    file = next(data.glob("*/*/*/*.parquet"))
    attempt = file.relative_to(data).parts[0]
    copy = data / f"{attempt[:-8]}deadbeef" / file.relative_to(data / attempt)
    copy.parent.mkdir(parents=True)
    shutil.copy(file, copy)
