"""Spark's copy, as the demo handles it: a child process, and the files of its table.

The table is read here from its Parquet files, not through Spark, so that the comparison does not
depend on Spark.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.core.errors import CometError
from cometmq.net.tasks import Tasks
from cometmq.spark.tables.snapshots import SnapshotTable
from examples.demo.progress import Report
from examples.demo.tables import TABLES, Row

if TYPE_CHECKING:
    from examples.demo.progress import Board

FINISH_TIMEOUT_S: Final = 120
CLOSE_TIMEOUT_S: Final = 20
BUSIEST_SHOWN: Final = 3
_LOG_TAIL_BYTES: Final = 2_000
_LINE_MAX_BYTES: Final = 1024 * 1024
#: Lets the child, which runs in another folder, import the examples.
_PYTHON_PATH: Final = os.pathsep.join(
    filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))
)


class PipelineFailed(CometError):
    """The child process ended, or did not finish in time."""


class _Findings(msgspec.Struct):
    """The report as the child prints it."""

    changes: int
    groups: int
    busiest: list[tuple[str, str, int]]
    lag_ms: dict[str, int]


class _Line(msgspec.Struct):
    """A line of the child's output."""

    state: str
    batches: int = 0
    applied: int = 0
    rejected: int = 0
    report: _Findings | None = None


class SparkPipeline:
    """The pipeline; all its files are under ``directory``."""

    name = "spark"

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.log_path = directory / "spark.log"
        self._tasks = Tasks()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[_Line | None] | None = None
        self._applied = asyncio.Event()

    def command(self, namesrv: str, topic: str) -> list[str]:
        """Return the command line of the child."""
        words = ["-m", "examples.demo.follower", namesrv, topic, str(self.directory)]
        return [sys.executable, *words]

    async def start(self, namesrv: str, topic: str, board: Board) -> None:
        """Start the child. It is ready some seconds later, and reads from the topic's beginning."""
        self.directory.mkdir(parents=True, exist_ok=True)
        board.spark_state = "starting"
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command(namesrv, topic),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self.directory,  # Spark creates folders in it
                env=os.environ | {"PYTHONPATH": _PYTHON_PATH},
                limit=_LINE_MAX_BYTES,
                start_new_session=True,
            )
        self._reading = self._tasks.spawn(self._read(board), name="spark pipeline")

    async def started(self, timeout_ms: int) -> bool:
        """Wait until the child has applied its first changes, or has ended; return False after a
        timeout."""
        assert self._reading is not None
        first = self._tasks.spawn(self._applied.wait(), name="first batch")
        done, _ = await asyncio.wait(
            (first, self._reading), timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        first.cancel()
        return bool(done)

    async def finish(self) -> tuple[dict[str, list[Row]], Report]:
        """Let the child read to the end of the topic; return its tables and its report.

        Raise PipelineFailed if it ended without a report, or did not finish in time.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reading is not None
        try:
            self._process.stdin.write(b"finish\n")
            await self._process.stdin.drain()
            done = await asyncio.wait_for(asyncio.shield(self._reading), FINISH_TIMEOUT_S)
        except ConnectionError:
            done = None
        except TimeoutError:
            raise self._failed(f"not finished within {FINISH_TIMEOUT_S} s") from None
        if done is None or done.report is None:
            raise self._failed("ended without a report")
        found = done.report
        report = Report(found.changes, found.groups, found.busiest[:BUSIEST_SHOWN], found.lag_ms)
        return await asyncio.to_thread(read_tables, self.directory), report

    async def close(self) -> None:
        """End the child and all processes that it started."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await self._tasks.close()

    async def _read(self, board: Board) -> _Line | None:
        """Follow the child's output; return its last line, or None if it ended without a report."""
        assert self._process is not None
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            if not raw.startswith(b"{"):
                continue  # Java may print other lines
            line = msgspec.json.decode(raw, type=_Line)
            board.spark_state = f"{line.applied:,} changes in {line.batches} batches"
            if line.applied:
                self._applied.set()
            if line.state == "done":
                return line
        return None

    def _failed(self, problem: str) -> PipelineFailed:
        tail = self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return PipelineFailed(f"the Spark pipeline {problem}; see {self.log_path}: {tail}")


def read_tables(directory: Path) -> dict[str, list[Row]]:
    """Return the live rows of the pipeline's table, by table name, from its files."""
    from pyarrow import parquet

    snapshots = SnapshotTable(directory / "table")
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    for folder in snapshots.paths(snapshots.current()):
        for path in sorted(Path(folder).glob("*.parquet")):
            columns = parquet.ParquetFile(path).read(["table", "op", "row"]).to_pydict()
            for name, op, row in zip(columns["table"], columns["op"], columns["row"], strict=True):
                if op != "delete":
                    tables[name].append(msgspec.json.decode(row, type=Row))
    return tables
