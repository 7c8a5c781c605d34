"""A task copies its rows in one transaction, or leaves nothing."""

import uuid
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from cometmq.spark.tables.postgres import copy
from cometmq.spark.tables.staging import StagingSource

# The server comes from the fixtures of Spark's tests; no session is needed here.
TASK = str(uuid.UUID(int=7))


@pytest.fixture
def source(postgres: str) -> StagingSource:
    name = f"Stage {uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres) as connection:
        connection.execute(f'CREATE TABLE "{name}" ("a "" b" text, n int, task uuid)')
    return StagingSource(postgres, "public", name, ('a " b', "n"), "task")


def batches(*rows: list[tuple[str | None, int]]) -> Iterator[pa.RecordBatch]:
    for each in rows:
        texts, numbers = [row[0] for row in each], [row[1] for row in each]
        yield pa.record_batch(
            [pa.array(texts, pa.string()), pa.array(numbers, pa.int32())], ["a", "n"]
        )


def stored(source: StagingSource) -> list[tuple[object, ...]]:
    with psycopg.connect(source.conninfo) as connection:
        return connection.execute(f'SELECT * FROM "{source.staging}" ORDER BY n').fetchall()


def test_copy(source: StagingSource) -> None:
    given = batches([("", 1), (None, 2)], [], [("ü\n", 3)])
    assert copy(source, TASK, given) == 3
    task = uuid.UUID(TASK)
    assert stored(source) == [("", 1, task), (None, 2, task), ("ü\n", 3, task)]
    assert copy(source, TASK, batches()) == 0


def test_a_task_that_fails_leaves_nothing(source: StagingSource) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches([("a", 1)])
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        copy(source, TASK, failing())
    with pytest.raises(psycopg.errors.DataError):
        copy(source, TASK, batches([("a", 1)], [("a\0b", 2)]))
    assert stored(source) == []
