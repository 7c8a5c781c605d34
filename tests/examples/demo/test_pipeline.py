"""The demo's side of the Spark pipeline: what it hears, what it waits for, what it reads."""

import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from cometmq.spark.tables.snapshots import Manifest, SnapshotTable
from examples.demo import pipeline
from examples.demo.pipeline import PipelineFailed, SparkPipeline, read_tables
from examples.demo.progress import Board
from tests.examples.demo.worlds import small_world

DONE = (
    '{"state": "done", "batches": 2, "applied": 9, "rejected": 0, "report": {"changes": 9, '
    '"groups": 2, "busiest": [["AD", "h", 5], ["FR", "h", 2], ["DE", "h", 1], ["IT", "h", 1]], '
    '"lag_ms": {"p50": 4}, "per_s": 1.0}}'
)


class Scripted(SparkPipeline):
    """Runs a few lines of Python in place of Spark."""

    code = ""

    def command(self, namesrv: str, topic: str) -> list[str]:
        return [sys.executable, "-c", self.code]


def scripted(tmp_path: Path, code: str) -> Scripted:
    made = Scripted(tmp_path / "spark")
    made.code = f"import sys, time\ndef say(line): print(line, flush=True)\n{code}"
    return made


async def test_progress_and_report_arrive(tmp_path: Path) -> None:
    reading = '{"state": "reading", "batches": 1, "applied": 7}'
    code = f"say('Java greets'); say('{reading}'); sys.stdin.readline(); say('{DONE}')"
    spark, board = scripted(tmp_path, code), Board(0, {})
    await spark.start("a:1", "t", board)
    assert await spark.started(20_000)
    assert board.spark_state == "7 changes in 1 batches"
    tables, report = await spark.finish()
    assert tables == {"regions": [], "users": []}
    assert (report.changes, report.countries, report.lag_ms) == (9, 2, {"p50": 4})
    assert report.busiest == [("AD", "h", 5), ("FR", "h", 2), ("DE", "h", 1)]
    await spark.close()


async def test_a_pipeline_that_breaks_says_what_its_log_says(tmp_path: Path) -> None:
    spark = scripted(tmp_path, "print('no such class', file=sys.stderr); sys.exit(1)")
    await spark.start("a:1", "t", Board(0, {}))
    assert await spark.started(20_000)
    with pytest.raises(PipelineFailed, match=r"ended without a report.*no such class"):
        await spark.finish()
    await spark.close()


async def test_a_pipeline_that_never_finishes_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "FINISH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(pipeline, "CLOSE_TIMEOUT_S", 0.2)
    spark = scripted(tmp_path, "time.sleep(60)")
    await spark.start("a:1", "t", Board(0, {}))
    assert not await spark.started(100)
    with pytest.raises(PipelineFailed, match="not finished within"):
        await spark.finish()
    await spark.close()


async def test_closing_what_never_started_does_nothing(tmp_path: Path) -> None:
    await SparkPipeline(tmp_path).close()


def test_the_command_names_topic_and_place(tmp_path: Path) -> None:
    words = SparkPipeline(tmp_path).command("a:1", "t")
    assert words[1:] == ["-m", "examples.demo.follower", "a:1", "t", str(tmp_path)]


def test_tables_are_read_from_the_newest_version_without_deleted_rows(tmp_path: Path) -> None:
    table = SnapshotTable(tmp_path / "table")
    rows = small_world()
    texts = [msgspec.json.encode(row).decode() for row in rows]
    for version, ops in ((1, ["insert"] * 5), (2, ["insert"] * 4 + ["delete"])):
        folder = table.folder(version) / "bucket=0"
        folder.mkdir(parents=True)
        shown = [None if op == "delete" else text for op, text in zip(ops, texts, strict=True)]
        columns = {"table": ["regions"] * 5, "op": ops, "row": pa.array(shown, pa.string())}
        parquet.write_table(pa.table(columns), folder / "part-0.parquet")
        table.commit(Manifest(version, "q", version, {0: version}, {}))
    assert read_tables(tmp_path) == {"regions": rows[:4], "users": []}


def test_a_pipeline_that_wrote_nothing_has_no_rows(tmp_path: Path) -> None:
    assert read_tables(tmp_path) == {"regions": [], "users": []}
