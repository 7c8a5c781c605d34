"""A client of Spark Connect that has CometMQ too, and writes a stream to a table.

connect_tables.py SERVER NAMESERVER TOPIC FOLDER
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from cometmq.spark.tables.parquet import ParquetTable

server, namesrv, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
given = {"nameservers": namesrv, "topic": topic, "startingOffsets": "earliest"}
rows = spark.readStream.format("rocketmq").options(**given).load()
query = (
    rows.writeStream.foreachBatch(ParquetTable(str(Path(folder, "table"))))
    .option("checkpointLocation", str(Path(folder, "checkpoint-of-table")))
    .trigger(availableNow=True)
    .start()
)
try:
    query.awaitTermination()
finally:
    spark.stop()
