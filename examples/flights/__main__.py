"""``make flights``: a broker, the year's flights through it, the Spark job, and a check of it.

python -m examples.flights [--limit N] [--speed N|max]
"""

import argparse
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import uvloop

import cometmq
from cometmq.admin.node import NodeProcess
from cometmq.spark.session import local_session
from examples.flights.data import COUNT, flights
from examples.flights.delays import by_carrier, collected, delays, expected, messages
from examples.flights.replay import TOPIC, parse_speed, replay

#: Files of this size are enough for a year of flights, also on a disk with little space.
SETTINGS = {"mappedFileSizeCommitLog": str(64 * 1024 * 1024)}


async def send_all(nameservers: str, limit: int, speed: float) -> int:
    """Create the topic and replay the flights into it."""
    async with cometmq.Client(nameservers) as client:
        await cometmq.Admin(client.session).create_topic(TOPIC, queues=8)
        return await replay(client, islice(flights(), limit), speed=speed)


def run(limit: int, speed: float, folder: Path) -> bool:
    """Run everything. Return whether Spark's result equals that of the file."""
    node = NodeProcess(folder / "store", settings=SETTINGS)
    node.start()
    try:
        started_s = time.monotonic()
        sent = uvloop.run(send_all(node.namesrv, limit, speed))
        seconds = time.monotonic() - started_s
        print(f"{sent:,} flights sent in {seconds:.1f} s, {sent / seconds:,.0f} a second")

        spark = local_session("flights")
        started_s = time.monotonic()
        hours = delays(messages(spark, node.namesrv)).cache()
        found = collected(hours)
        print(f"{len(found):,} carriers' hours in {time.monotonic() - started_s:.1f} s")
        by_carrier(hours).show()
        spark.stop()
    finally:
        node.terminate()
    equal = found == expected(islice(flights(), limit))
    print("Spark's delays and the file's are", "equal" if equal else "NOT equal")
    return equal and sent == min(limit, COUNT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.flights")
    parser.add_argument("--limit", type=int, default=COUNT, help="the first so many flights")
    parser.add_argument("--speed", type=parse_speed, default=float("inf"), metavar="N|max")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flights-") as place:
        sys.exit(0 if run(options.limit, options.speed, Path(place)) else 1)
