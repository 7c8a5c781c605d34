"""Makes `spark.read.format("rocketmq")` work without a jar or a call.

Spark imports every top-level module whose name starts with `pyspark_` when it looks for Python
data sources, so this module stays light.
"""
