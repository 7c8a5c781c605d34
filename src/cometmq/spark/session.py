"""Spark sessions with the settings that the source, the tables and the jobs need.

Sessions created elsewhere (spark-submit, a notebook) can copy SETTINGS into their configuration.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

_DRIVER_JAVA: Final = "spark.driver.extraJavaOptions"
#: Settings of sessions whose driver and executors are one process on this machine.
LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Stopping a stream inside foreachBatch makes Spark match a long Python traceback with a regular
    # expression that recurses once per character. The default stack is too small for that.
    _DRIVER_JAVA: "-Xss8m",
}
#: Settings of all sessions.
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.python.worker.reuse": "true",
    # Delta and most readers do not support INT96, which is Spark's default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def local_session(
    name: str,
    *,
    cores: int = 2,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session whose tasks run on this machine, or return the session that already runs.

    ``cores`` is the number of tasks that run at once, ``memory`` the heap of the JVM that this
    process starts. ``settings`` take precedence over LOCAL and SETTINGS.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    own = {"spark.driver.memory": memory, "spark.sql.shuffle.partitions": str(cores)}
    return _session(name, f"local[{cores}]", {**LOCAL, **SETTINGS, **own, **(settings or {})})


def session_on(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session on any master: ``local[4]``, ``spark://host:7077``, ``yarn``, ``k8s://...``.

    ``settings`` take precedence over SETTINGS. A session that already runs in this process is
    reused. Executors run the Python at the path in the environment variable ``PYSPARK_PYTHON``, by
    default the path of this process's Python. That Python must have cometmq and pyarrow installed.
    """
    if master.startswith("local"):
        return local_session(name, settings={"spark.master": master, **settings})
    own = {key: LOCAL[key] for key in ("spark.ui.showConsoleProgress", _DRIVER_JAVA)}
    return _session(name, master, {**SETTINGS, **own, **settings})


def activate(session: SparkSession) -> None:
    """Make a session the active one of this thread. Call it before the first write of a thread that
    is not the main one.

    Spark looks for the format of a write in the thread's active session, and fails with
    DATA_SOURCE_NOT_FOUND if the thread has none. Reads use the session that they belong to.
    """
    # createDataFrame is the public call that makes its session the active one.
    session.createDataFrame([], "unused int")


def _session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
