"""One campaign of kills on a cluster, with all sinks: every message is there once.

`make deep` runs many (tests/spark/killing.py).
"""

import os
from pathlib import Path
from random import Random

import pytest

from tests.spark.killing import campaign
from tests.spark.sinks import SINKS
from tests.spark.standalone import Standalone

pytestmark = pytest.mark.spark


def test_an_executor_and_something_else(
    spark_cluster: Standalone, postgres: str, tmp_path: Path
) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    other = Random(seed).choice(["driver", "jvm", "python worker", "broker"])
    with campaign(tmp_path, seed, sorted(SINKS), spark_cluster, postgres) as found:
        found.round("executor")
        found.round(other)
        found.finish()
        assert set(found.kills) == {"executor", other}
