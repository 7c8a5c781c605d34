"""A local Spark session with the settings that the source and the jobs want.

On a cluster, set the same in its own configuration; only the last group of SETTINGS matters there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Stopping a stream inside foreachBatch makes Spark match a long Python traceback with a regular
    # expression that recurses a character at a time.
    "spark.driver.extraJavaOptions": "-Xss8m",
}
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.python.worker.reuse": "true",
}


def local_session(
    name: str,
    *,
    cores: int = 2,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process and a JVM under it, or give the session that runs already.

    ``cores`` is how many tasks run at once, ``memory`` the JVM's heap. ``settings`` go over ours.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
    own = {"spark.driver.memory": memory, "spark.sql.shuffle.partitions": str(cores)}
    for key, value in {**LOCAL, **SETTINGS, **own, **(settings or {})}.items():
        builder = builder.config(key, value)
    return _quiet(builder)


def session_on(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    """A session on any master: ``local[4]``, ``spark://host:7077``, ``yarn``. ``settings`` go over
    ours; a session that runs already in this process is given again."""
    if master.startswith("local"):
        return local_session(name, settings={"spark.master": master, **settings})
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **settings}.items():
        builder = builder.config(key, value)
    return _quiet(builder)


def _quiet(builder: SparkSession.Builder) -> SparkSession:
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
