"""What a pull of 32 messages costs the broker's loop itself: processor time, no sockets.

    .venv/bin/python -m benchmarks.pulls [--rounds 100] [--body 128] [--profile CASE]

A whole broker serves connections whose transports keep what is written to them (requests.py). Each
connection reads a queue of its own, one pull behind the other; records of the queues lie in turns
in the log. Of a tail the queue's entries are in memory; after a restart they come from its file,
and the records from the page cache. Prints one JSON line a case: microseconds a pull, the lower
quartile of the rounds.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.requests import CONNECTIONS, IN_FLIGHT, PROPERTIES, STORE, WARM_UP, Load
from cometmq.net.eventloop import run
from cometmq.protocol.codes import RequestCode
from tests.broker.serving import pull_fields, running_broker, send_fields

#: A filter for tags that each message has, and one for a tag of every fourth.
SUBSCRIPTIONS = {"": "*", ", every tag": "t0 || t1 || t2 || t3", ", a tag of 4": "t1"}
#: Rounds of sends. Each stores IN_FLIGHT messages in every queue.
FILLED_ROUNDS = 40
FILLED = FILLED_ROUNDS * IN_FLIGHT
#: Number of entries at the end of a queue that are in memory.
TAIL = 256
PULLED = 32
LENGTH_BYTES = 4


class Pulls(Load):
    """Connections that each fill a queue, and pull from it."""

    def fill(self, body: bytes) -> Callable[[int, int], bytes]:
        """Return the frames of sends to all queues in turns."""

        def frame(_: int, number: int) -> bytes:
            self._opaque += 1
            queue_id, tag = number % CONNECTIONS, number // CONNECTIONS % 4
            text = PROPERTIES % (self._opaque, "")
            text = text.replace("TAGS\x01tag", f"TAGS\x01t{tag}")
            fields = send_fields(a="load", b="pulled", d=str(CONNECTIONS), e=str(queue_id), i=text)
            return self._frame(RequestCode.SEND_MESSAGE_V2, fields, body)

        return frame

    def pull(self, first: int, subscription: str) -> Callable[[int, int], bytes]:
        """Return the frames of consecutive pulls from ``first`` on, repeated over and over."""
        passed = PULLED * (4 if subscription == "t1" else 1)
        places = (FILLED - first) // passed

        def frame(at: int, number: int) -> bytes:
            self._opaque += 1
            offset = first + number % places * passed
            fields = pull_fields(
                offset, topic="pulled", queueId=str(at), subscription=subscription,
                consumerGroup="load", sysFlag="6", suspendTimeoutMillis="15000",
            )  # fmt: skip
            return self._frame(RequestCode.PULL_MESSAGE, fields, b"")

        return frame

    async def _all_answered(self) -> None:
        for _, sink in self._peers:
            at = count = 0
            while count < IN_FLIGHT:
                while at + LENGTH_BYTES <= len(sink.written) and count < IN_FLIGHT:
                    at += int.from_bytes(sink.written[at : at + LENGTH_BYTES], "big") + LENGTH_BYTES
                    count += at <= len(sink.written)
                if count < IN_FLIGHT:
                    at = count = 0
                    self._arrived.clear()
                    await self._arrived.wait()


async def measure(rounds: int, body: bytes, profile: str) -> dict[str, float]:
    """Return microseconds per pull, by case."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="cometmq-pulls-") as home:
        for kind in ("tail", "page cache"):
            async with running_broker(Path(home), **STORE) as running:
                load = Pulls(running.broker.server)
                first = FILLED - TAIL if kind == "tail" else 0
                if kind == "tail":
                    for _ in range(FILLED_ROUNDS):
                        await load.round(load.fill(body))
                for name, subscription in SUBSCRIPTIONS.items():
                    case = f"pull {PULLED} {kind}{name}"
                    if profile in ("", case):
                        found[case] = await case_us(
                            load, rounds, first, subscription, bool(profile)
                        )
                load.close()
    return found


async def case_us(load: Pulls, rounds: int, first: int, subscription: str, profiled: bool) -> float:
    """Return microseconds per pull in one case. If requested, print a profile."""
    times: list[float] = []
    profiler: Any = cProfile.Profile() if profiled else None
    for number in range(WARM_UP + rounds):
        if profiler is not None and number == WARM_UP:
            profiler.enable()
        took_us, answers = await load.round(load.pull(first, subscription))
        times.append(took_us)
        if not number and any(len(answer) < IN_FLIGHT * PULLED * 100 for answer in answers):
            raise SystemExit(f"not as many messages as were asked for: {answers[0][:300]!r}")
    if profiler is not None:
        profiler.disable()
        profiler.print_stats("tottime")
    return sorted(times[WARM_UP:])[rounds // 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--body", type=int, default=128, help="bytes of a message's body")
    parser.add_argument("--profile", default="", metavar="CASE", help="only this one, profiled")
    options = parser.parse_args()
    rounds = max(options.rounds, 1)
    found = run(measure(rounds, b"x" * options.body, options.profile))
    for case, took_us in found.items():
        print(json.dumps({"case": case, "us": round(took_us, 2)}))


if __name__ == "__main__":
    main()
