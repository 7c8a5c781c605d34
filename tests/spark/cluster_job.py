"""What a user does on a cluster, in a driver of its own: MASTER FOLDER NAMESRV TOPIC CHANGES.

Reads a topic as a batch, and runs a job over a topic of changes. Prints one line of JSON.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import functions as f

from cometmq.spark.jobs import sync
from cometmq.spark.session import session_on
from tests.spark.killed_query import Query, settings
from tests.spark.sinks import Place


def main(master: str, folder: Path, namesrv: str, topic: str, changes: str) -> None:
    """Run it all, and say what came out."""
    query = Query(Place(str(folder), namesrv), topic, [], master)
    spark = session_on(master, "cluster job", settings(query))
    read = spark.read.format("rocketmq").option("nameservers", namesrv).option("topic", topic)
    read = read.option("minPartitions", "4")
    counted = read.load().where("queue_id > 0").groupBy("queue_id").count().collect()
    worker = f.udf(os.getppid, "int")().alias("parent")
    parents = {row.parent for row in spark.range(0, 8, 1, 4).select(worker).collect()}
    done = sync.run(spark, sync.SyncOptions(namesrv, changes, folder / "sync", buckets=2))
    found = {
        "master": spark.sparkContext.master,
        "counts": {row.queue_id: row["count"] for row in counted},
        "daemons": sorted(parents),
        "rows": done.rows,
        "applied": done.applied,
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
