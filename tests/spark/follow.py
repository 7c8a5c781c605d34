"""A stream into Parquet in a process of its own, to be killed: NAMESRV TOPIC FOLDER."""

import sys
from pathlib import Path

from cometmq.spark.session import local_session
from tests.spark.conftest import QUICK_JVM


def main(namesrv: str, topic: str, folder: Path) -> None:
    """Follow the topic until killed, in many small batches."""
    spark = local_session("follow", settings=QUICK_JVM)
    read = spark.readStream.format("rocketmq").option("nameservers", namesrv)
    read = read.option("topic", topic).option("startingOffsets", "earliest")
    write = read.option("maxOffsetsPerTrigger", 40).load().writeStream.format("parquet")
    write = write.option("checkpointLocation", str(folder / "checkpoint"))
    write.option("path", str(folder / "rows")).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
