"""Registers the data source, so that `spark.read.format("rocketmq")` needs no jar and no call.

Spark imports every top-level module whose name starts with `pyspark_` when it looks for Python data
sources, and takes the class `DefaultSource` from each.
"""

from cometmq.spark.source import TopicSource as DefaultSource

__all__ = ["DefaultSource"]
