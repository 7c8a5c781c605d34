"""The local session has the settings that the source wants."""

import sys

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.session import SETTINGS, local_session, session_on

pytestmark = pytest.mark.spark


def test_settings(spark: SparkSession) -> None:
    for key, value in SETTINGS.items():
        assert spark.conf.get(key) == value
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_running_session_is_given_again(spark: SparkSession) -> None:
    assert local_session("other").sparkContext is spark.sparkContext
    assert session_on("local[3]", "other", {}).sparkContext is spark.sparkContext
    assert session_on("spark://127.0.0.1:1", "other", {}).sparkContext is spark.sparkContext
