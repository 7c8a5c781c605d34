"""A client of Spark Connect: reads a topic, writes to it, and streams from it. Prints what it saw.

It runs with the packages of requirements/connect.lock, without CometMQ: only the server has that.

    connect_client.py SERVER NAMESERVER TOPIC FOLDER
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

server, namesrv, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
given = {"nameservers": namesrv, "topic": topic, "startingOffsets": "earliest"}
found: dict[str, Any] = {"has_cometmq": find_spec("cometmq") is not None}

rows = spark.read.format("rocketmq").options(**given).load()
found["read"] = sorted(row.keys for row in rows.select("keys").collect())
found["filtered"] = rows.where("queue_id = 1").count()


def streamed() -> list[str]:
    """What all streams with this checkpoint have read so far."""
    stream = spark.readStream.format("rocketmq").options(**given).load()
    target = Path(folder, "rows")
    query = (
        stream.select("keys")
        .writeStream.format("json")
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()
    return sorted(row.keys for row in spark.read.schema("keys string").json(str(target)).collect())


found["streamed"] = streamed()
sent = rows.where("queue_id = 0").selectExpr("topic", "concat('copy-', keys) as keys", "body")
sent.write.format("rocketmq").mode("append").option("nameservers", namesrv).save()
found["streamed_again"] = streamed()
spark.stop()
print(json.dumps(found))
