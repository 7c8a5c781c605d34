"""Pieces worked on by Spark."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs.job import SparkPool

pytestmark = pytest.mark.spark


def times_shared(shared: int, piece: int, _: Callable[[int], None]) -> int:
    return shared * piece


def test_every_piece_once(spark: SparkSession) -> None:
    told: list[tuple[str, int, int]] = []
    with SparkPool(spark, 7, lambda *progress: told.append(progress)) as pool:
        assert sorted(pool.run(times_shared, range(4))) == [0, 7, 14, 21]
        assert list(pool.run(times_shared, [])) == []
    assert told[-1] == ("times shared", 4, 4)
