"""Spark sessions with the settings that the source, the tables and the jobs want.

Sessions that are made elsewhere (spark-submit, a notebook) take SETTINGS into their configuration.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

_DRIVER_JAVA: Final = "spark.driver.extraJavaOptions"
LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Stopping a stream inside foreachBatch makes Spark match a long Python traceback with a regular
    # expression that recurses a character at a time.
    _DRIVER_JAVA: "-Xss8m",
}
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.python.worker.reuse": "true",
    # Delta and most readers know no INT96, which is Spark's own choice.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
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
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    own = {"spark.driver.memory": memory, "spark.sql.shuffle.partitions": str(cores)}
    return _session(name, f"local[{cores}]", {**LOCAL, **SETTINGS, **own, **(settings or {})})


def session_on(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    """A session on any master: ``local[4]``, ``spark://host:7077``, ``yarn``, ``k8s://...``.
    ``settings`` go over ours; a session that runs already in this process is given again.

    Executors start Python by the path in the environment's ``PYSPARK_PYTHON``, else by that of this
    process, and there must be cometmq and pyarrow in it.
    """
    if master.startswith("local"):
        return local_session(name, settings={"spark.master": master, **settings})
    own = {key: LOCAL[key] for key in ("spark.ui.showConsoleProgress", _DRIVER_JAVA)}
    return _session(name, master, {**SETTINGS, **own, **settings})


def _session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
