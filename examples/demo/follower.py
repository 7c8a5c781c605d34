"""The demo's Spark pipeline, run as a child process: ``python -m examples.demo.follower``.

It prints one JSON object a line: ``{"state": "reading", "batches": 3, "applied": 5295}`` while it
follows the topic, ``{"state": "done", ...}`` with the report at the end. The line ``finish`` on
standard input makes it read to the end of the topic, report and stop. The end of standard input
makes it stop at once.
"""

from __future__ import annotations

import argparse
import selectors
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from cometmq.spark.jobs import sync
from cometmq.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.5


def main(words: Sequence[str] | None = None) -> int:
    """Follow the topic until the order to finish; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.follower")
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args(words)
    wanted = sync.SyncOptions(options.namesrv, options.topic, options.directory)
    spark = local_session("cometmq-demo")
    try:
        query = sync.start(spark, wanted)
        if not follow(query, wanted, sys.stdin):
            query.stop()
            return 1
        sync.drain(query)
        result = sync.finish(spark, wanted)
        say(state="done", **msgspec.to_builtins(result))
    finally:
        spark.stop()
    return 0


def follow(query: StreamingQuery, options: sync.SyncOptions, orders: TextIO) -> bool:
    """Report progress until an order arrives; return True if it is "finish".

    Raise StreamingQueryException if the query failed.
    """
    said = -1
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while not selector.select(POLL_S):
            failure = query.exception()
            if failure is not None:
                raise failure
            manifest = options.table.current()
            if manifest.version != said:
                said = manifest.version
                applied = manifest.counts.get("applied", 0)
                say(state="reading", batches=manifest.version, applied=applied)
    return orders.readline().strip() == "finish"


def say(**values: object) -> None:
    """Print one JSON object on a line of its own."""
    print(msgspec.json.encode(values).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
