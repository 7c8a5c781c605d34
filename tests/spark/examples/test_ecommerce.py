"""A short day of the shop: the books are right, and Spark's minutes are theirs."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.testing.cluster import cluster_in_thread
from examples.ecommerce.books import Books
from examples.ecommerce.funnel import collected, follow, minutes, revenue
from examples.ecommerce.shop import DEAD_LETTERS, Plan, open_shop

pytestmark = pytest.mark.spark

PLAN = Plan(orders=90)


def test_a_day_of_the_shop(spark: SparkSession, tmp_path: Path) -> None:
    checks = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
    with cluster_in_thread(tmp_path, **checks) as cluster:
        query = follow(spark, cluster.namesrv, tmp_path)
        outcome = asyncio.run(open_shop(cluster.namesrv, tmp_path, PLAN))
        query.processAllAvailable()
        query.stop()
    books = Books(tmp_path)
    assert books.wrong(outcome.charges, sum(PLAN.items.values())) == []
    found = minutes(spark, tmp_path).cache()
    assert collected(found) == books.minutes()
    books.close()
    # All that should go wrong did: transactions left open, repetitions, dead letters.
    assert outcome.counts["placed"] == 89
    assert outcome.counts["asked"] >= 4
    assert outcome.counts["repeated"] > 0
    assert outcome.counts["sent again"] >= outcome.counts["dead"] >= DEAD_LETTERS
    money = {row.minute: row for row in revenue(found).collect()}
    assert sum(row.placed for row in money.values()) == 89
    assert sum(row.shipped + row.refunded for row in money.values()) == 89
