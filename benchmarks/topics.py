"""The row "10 000 topics against 1": the cost of many queues for a single send."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.loading import BUILD
from benchmarks.many_queues import NARROW, WIDE, Measured, write_topics
from benchmarks.servers import OurServer

TOPICS: Final = 10_000
LIMIT_S: Final = 120.0


def many_topics(programs: Path, rounds: int, seconds: float, topics: int = TOPICS) -> list[float]:
    """Return, for each round, the ratio of the rate over all queues of ``topics`` topics to that of
    one topic.

    Raises BenchmarkFailed, NodeFailed.
    """
    with tempfile.TemporaryDirectory(prefix="stores-", dir=BUILD) as name:
        server = OurServer(Path(name, "cometmq"))
        write_topics(server.home / "store", topics)
        server.start()
        try:
            measured = Measured(server, programs / "load", topics, seconds, LIMIT_S)
            measured.fill()
            shares = []
            for number in range(rounds):
                order = (WIDE, NARROW) if number % 2 else (NARROW, WIDE)
                found = {topic: measured.load(topic, 8, 64) for topic in order}
                rates = {topic: found[topic]["messages_per_s"] for topic in order}
                shares.append(round(rates[WIDE] / rates[NARROW], 3))
            return shares
        finally:
            server.kill()
