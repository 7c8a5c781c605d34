"""The whole demo with Spark, as a user runs it: a child process of its own, a real JVM."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from cometmq.spark.jobs.sync import SyncOptions
from examples.demo import follower
from examples.demo.base import BaseData
from examples.demo.compare import compare
from examples.demo.pipeline import read_tables
from examples.demo.tables import TABLES, read_table

pytestmark = pytest.mark.spark

LIMIT_S = 180


def test_the_whole_demo_ends_equal_within_three_minutes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["-m", "examples.demo", "--directory", str(out), "--changes", "2000"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All copies are equal to the base, row by row." in done.stdout
    copies = re.findall(r"^(social|order|spark) .* (yes|NO: \S+) *$", done.stdout, re.MULTILINE)
    assert copies == [("social", "yes"), ("order", "yes"), ("spark", "yes")]
    assert "Spark's report" in done.stdout

    # Not only what it says: read the files again, and change one of them.
    base = {name: read_table(out / "base.sqlite", table) for name, table in TABLES.items()}
    spark = read_tables(out / "spark")
    assert compare("spark", base, spark).equal
    spark["users"][0]["level"] = -1
    assert compare("spark", base, spark).different == 1
    data = BaseData(out / "base.sqlite", "base-data-changes")
    assert len(data.last_changes()) > len(base["regions"])
    data.close()


class Query:
    """A query that runs until it fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def exception(self) -> Exception | None:
        return self.failure


@contextmanager
def orders(text: str | None) -> Iterator[TextIO]:
    """Standard input that holds `text` and then ends, or that stays silent for None."""
    reading, writing = os.pipe()
    if text is not None:
        os.write(writing, text.encode())
        os.close(writing)
    with os.fdopen(reading) as given:
        yield given
    if text is None:
        os.close(writing)


@pytest.mark.parametrize(("text", "finish"), [("finish\n", True), ("", False), ("x\n", False)])
def test_only_the_word_finish_finishes(tmp_path: Path, text: str, finish: bool) -> None:
    options = SyncOptions("a:1", "t", tmp_path)
    with orders(text) as given:
        assert follower.follow(Query(), options, given) is finish  # type: ignore[arg-type]


def test_a_query_that_failed_ends_the_wait(tmp_path: Path) -> None:
    options = SyncOptions("a:1", "t", tmp_path)
    query = Query(RuntimeError("stream broke"))
    with orders(None) as given, pytest.raises(RuntimeError, match="stream broke"):
        follower.follow(query, options, given)  # type: ignore[arg-type]
