"""The delays that Spark finds are those in the file."""

from itertools import islice

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.testing.cluster import Cluster
from examples.flights.data import flights
from examples.flights.delays import by_carrier, collected, delays, expected, messages
from examples.flights.replay import replay
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark


def test_delays_of_the_first_days(spark: SparkSession, cometmq_session_cluster: Cluster) -> None:
    some = list(islice(flights(), 3_000))
    with Client(cometmq_session_cluster.namesrv) as client:
        make_topic(client, "SomeFlights")
        assert client.wait(replay(client.inner, some, topic="SomeFlights")) == 3_000
    hours = delays(messages(spark, cometmq_session_cluster.namesrv, "SomeFlights")).cache()
    found = collected(hours)
    assert found == expected(some)
    assert any(each.left < each.flights for each in found.values())  # some were cancelled
    carriers = {row.carrier: row.flights for row in by_carrier(hours).collect()}
    assert sum(carriers.values()) == 3_000
    assert carriers.keys() == {flight.carrier for flight in some}
