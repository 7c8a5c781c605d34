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

import pyarrow as pa
import pytest
from pyarrow import parquet

from cometmq.spark.tables.datafiles import LocalFolder
from cometmq.spark.tables.parquet import BatchLog, DataFile
from cometmq.spark.tables.sink import Mark
from cometmq.testing.cluster import Cluster
from examples.dbt.orders import OrderEvent, events
from tests.architecture.rules import ROOT
from tests.packaging.tools import locked_packages, run
from tests.transcript import Shell, Step, matches, read_page

pytestmark = pytest.mark.spark

EXAMPLE = ROOT / "examples" / "dbt"
PAGE = ROOT / "docs" / "spark" / "dbt.md"
LOCK = ROOT / "requirements" / "dbt.lock"

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


def failed_tests(printed: list[str]) -> dict[str, int]:
    """The tests that dbt says failed, each with the number of its rows."""
    found = (re.match(r"\d+ of \d+ FAIL (\d+) (\w+)", line) for line in printed)
    return {match[2]: int(match[1]) for match in found if match}


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

        table = project.folder / "landing" / "orders"
        leave_an_attempt(table)
        add_what_is_no_order(table)
        one, other = (
            f"order_event_id = (select {pick}(order_event_id) from order_events)"
            for pick in ("min", "max")
        )
        project.sql(f"insert into order_events select * from order_events where {other}")
        project.sql(f"delete from order_events where {one}")
        printed = project.dbt("build")
        assert failed_tests(printed) == {
            "every_message_once": 2,
            "unique_order_events_order_event_id": 1,
            "not_null_order_events_cents": 1,
            "not_null_order_events_order_id": 1,
            "not_null_order_events_state": 1,
        }, printed
        # One is missing, one is there twice, one is new; the attempt's rows are not there.
        assert project.sql("select count(*) from order_events") == [(len(sent) + 1,)]


def data_file(table: Path) -> tuple[Path, Path]:
    """A file of the table, and its path below the folder of its attempt."""
    file = min((table / "data").glob("*/*/*/*.parquet"))
    return file, Path(*file.relative_to(table / "data").parts[1:])


def leave_an_attempt(table: Path) -> None:
    """Add what a killed attempt at a batch leaves: a file that no batch names."""
    file, name = data_file(table)
    copy = table / "data" / "batch=00000002-killed-deadbeef" / name
    copy.parent.mkdir(parents=True)
    shutil.copy(file, copy)


def add_what_is_no_order(table: Path) -> None:
    """Add a batch with one message, whose body is not JSON."""
    file, name = data_file(table)
    rows = parquet.ParquetFile(file).read()[:1]
    for column, value in (("queue_offset", 10_000), ("body", b"\xff is no order")):
        at = rows.column_names.index(column)
        rows = rows.set_column(at, rows.field(at), pa.array([value], rows.field(at).type))
    place = Path("data", "batch=00000000-byhand-cafecafe", name)
    (table / place).parent.mkdir(parents=True)
    parquet.write_table(rows, table / place)
    added = DataFile(place.as_posix(), (table / place).stat().st_size)
    assert BatchLog(LocalFolder(table)).commit(Mark("byhand", 0), [added])
