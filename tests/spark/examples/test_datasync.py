"""PostgreSQL to PostgreSQL and Delta through killed processes: the copies are equal."""

from itertools import islice
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from cometmq.testing.cluster import Cluster
from cometmq.testing.postgres import running_postgres
from examples.datasync.copies import Places
from examples.datasync.pipeline import catch_up
from examples.datasync.run import run
from examples.demo.script import Script, iso_regions

pytestmark = pytest.mark.spark


def test_all_copies_are_equal_after_kills(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    script = Script(islice(iso_regions(Random(7)), 100), users=100, seed=7)
    namesrv = cometmq_session_cluster.namesrv
    with running_postgres() as server:
        places = Places(server, tmp_path)
        outcome = run(
            places, namesrv, script, 200, lambda: catch_up(spark, namesrv, places), batches=0
        )
    assert [copy.name for copy in outcome.copies] == ["social", "orders", "history"]
    for copy in outcome.copies:
        assert copy.equal, copy.differences
        assert copy.rows["regions"] > 50
        assert copy.rows["users"] > 50
    assert outcome.messages >= outcome.changes >= 400
    assert any("wait for another relay" in event for event in outcome.events)
