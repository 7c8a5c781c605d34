"""What looking at messages by SQL92 costs the broker's loop: processor time, no sockets.

    .venv/bin/python -m benchmarks.filters [--rounds 300] [--body 128] [--profile CASE]

A whole broker serves connections whose transports keep what is written to them (requests.py). Each
reads a queue of its own by pulls of 32; records of the queues lie in turns in the log, and have the
properties of `load orders` (load/load.c). Each pass over a queue has an expression of its own, so
that what is known of one says nothing of the next. Prints one JSON line a case: microseconds a
message that is looked at, the pull included, the lower quartile of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.requests import CONNECTIONS, IN_FLIGHT, ROUND_LIMIT_S, STORE, WARM_UP, Load
from cometmq.net.eventloop import run
from cometmq.protocol.codes import RequestCode
from tests.broker.serving import pull_fields, running_broker, send_fields

#: By share of messages that match; {} is replaced by the number of a pass.
EXPRESSIONS: Final = {
    "10 % match": "amount < 3000{:03d} AND region = 'eu'",
    "50 % match": "amount >= 2500{:03d} AND region IN ('eu', 'us')",
}
PROPERTIES: Final = (
    "UNIQ_KEY\x01%032X\x02amount\x01%d\x02region\x01%s\x02kind\x01%s\x02WAIT\x01true\x02TAGS\x01tag"
)
FILLED_ROUNDS: Final = 400
FILLED: Final = FILLED_ROUNDS * IN_FLIGHT

_NEXT: Final = re.compile(rb'"nextBeginOffset":"(\d+)"')


class Looks(Load):
    """Connections that each fill a queue, and pull from it with filter expressions."""

    def fill(self, body: bytes) -> Callable[[int, int], bytes]:
        """Return the frames of sends to all queues in turns."""
        chance = random.Random(1)

        def frame(_: int, number: int) -> bytes:
            self._opaque += 1
            text = PROPERTIES % (
                self._opaque, chance.randrange(10_000_000), chance.choice(("eu", "us", "asia")),
                chance.choice(("new", "old")),
            )  # fmt: skip
            fields = send_fields(
                a="load", b="filtered", d=str(CONNECTIONS), e=str(number % CONNECTIONS), i=text
            )
            return self._frame(RequestCode.SEND_MESSAGE_V2, fields, body)

        return frame

    async def look(self, expression: str, places: list[int], passes: list[int]) -> float:
        """Pull once on every connection from its place on, and advance the place. Return the
        microseconds per filtered message."""
        frames = []
        for at, place in enumerate(places):
            self._opaque += 1
            fields = pull_fields(
                place, topic="filtered", queueId=str(at), consumerGroup="load", sysFlag="4",
                subscription=expression.format(passes[at] % 1_000), expressionType="SQL92",
            )  # fmt: skip
            frames.append(self._frame(RequestCode.PULL_MESSAGE, fields, b""))
        begin_ns = time.process_time_ns()
        for (peer, _), frame in zip(self._peers, frames, strict=True):
            peer.data_received(frame)
        async with asyncio.timeout(ROUND_LIMIT_S):
            while any(not sink.written for _, sink in self._peers):
                self._arrived.clear()
                await self._arrived.wait()
        took_ns = time.process_time_ns() - begin_ns
        looked_at = 0
        for at, (_, sink) in enumerate(self._peers):
            found = _NEXT.search(sink.written)
            if found is None:
                raise SystemExit(f"refused: {bytes(sink.written[:300])!r}")
            looked_at += int(found.group(1)) - places[at]
            places[at] = int(found.group(1))
            if places[at] >= FILLED:
                places[at] = 0
                passes[at] += 1
            sink.written.clear()
        return took_ns / 1_000 / looked_at


async def measure(rounds: int, body: bytes, profile: str) -> dict[str, float]:
    """Return microseconds per message, by case."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="cometmq-filters-") as home:
        for kind in ("written by this run", "page cache"):
            async with running_broker(Path(home), **STORE) as running:
                load = Looks(running.broker.server)
                if kind == "written by this run":
                    for _ in range(FILLED_ROUNDS):
                        await load.round(load.fill(body))
                for name, expression in EXPRESSIONS.items():
                    case = f"SQL92 {name}, {kind}"
                    if profile in ("", case):
                        found[case] = await case_us(load, rounds, expression, bool(profile))
                load.close()
    return found


async def case_us(load: Looks, rounds: int, expression: str, profiled: bool) -> float:
    """Return microseconds per message in one case. If requested, print a profile."""
    times: list[float] = []
    places, passes = [0] * CONNECTIONS, [0] * CONNECTIONS
    profiler: Any = cProfile.Profile() if profiled else None
    for number in range(WARM_UP + rounds):
        if profiler is not None and number == WARM_UP:
            profiler.enable()
        times.append(await load.look(expression, places, passes))
    if profiler is not None:
        profiler.disable()
        profiler.print_stats("tottime")
    return sorted(times[WARM_UP:])[rounds // 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--body", type=int, default=128, help="bytes of a message's body")
    parser.add_argument("--profile", default="", metavar="CASE", help="only this one, profiled")
    options = parser.parse_args()
    rounds = max(options.rounds, 1)
    found = run(measure(rounds, b"x" * options.body, options.profile))
    for case, took_us in found.items():
        print(json.dumps({"case": case, "us": round(took_us, 3)}))


if __name__ == "__main__":
    main()
