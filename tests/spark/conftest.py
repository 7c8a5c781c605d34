"""One Spark session for all Spark tests of a run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.session import local_session

# The quick compiler alone: the JVM is young in every test, and the machine is small.
QUICK_JVM = {"spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", settings=QUICK_JVM)
    yield session
    session.stop()
