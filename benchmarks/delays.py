"""How late delayed messages are, and what a million of them cost while they wait.

    .venv/bin/python -m benchmarks.delays [--rate 20000] [--seconds 3] [--pending 1000000]

Levels: sends at the given rate with a delay level; the delivery of each message is compared with
its due time. Timers: the same number due per second at individual times, first spread over each
second, then all at the same moment of a second. Then --pending messages, spread over three days,
are sent to wait: measured are the rate of the sends, RssAnon, the same deliveries beside them, a
stop with a start after it, and a kill with a start after it. The number of waiting messages must be
the same before and after. Prints one JSON line per case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.servers import OurServer, proc_numbers
from cometmq.core.clock import SystemClock
from cometmq.message import properties as props
from cometmq.protocol.codes import RequestCode
from tests.operation.raw import RawPeer, create_topic, pull_queue, send_header
from tests.operation.timed import Timed, deliveries, runtime, wait_for

CLOCK: Final = SystemClock()
DAY_MS: Final = 86_400_000
LEVELS_MS: Final = (1_000, 5_000)
SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
LEAD_MS: Final = 4_000
SETTINGS: Final = {"mappedFileSizeCommitLog": str(1 << 30)}


def report(case: str, **values: object) -> None:
    """Print one JSON line."""
    print(json.dumps({"benchmark": "delays", "case": case, **values}), flush=True)


def lateness(late_ms: list[int]) -> dict[str, object]:
    """Return percentiles of lateness, ms."""
    late_ms.sort()
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: late_ms[int(len(late_ms) * share)] for name, share in names.items()}
    return {"messages": len(late_ms), "lateness_ms": {**found, "max": late_ms[-1]}}


async def levels(address: str, rate: int, seconds: int, level: int) -> None:
    """Send at a steady rate with delay level 1 (1 s), so that deliveries overlap with sends, or 2
    (5 s), so that they come afterwards."""
    topic = f"levels-{level}"
    peer = await RawPeer.connect(address)
    await create_topic(peer, topic, 4)
    begin, sent, answers = time.perf_counter(), 0, []
    while sent < rate * seconds:
        due = min(int((time.perf_counter() - begin) * rate) + 1, rate * seconds)
        now_ms = CLOCK.wall_ms()
        headers = []
        for number in range(sent, due):
            text = props.encode_text({props.UNIQ_KEY: str(number), props.DELAY: str(level)})
            headers.append((send_header(topic, number % 4, text, now_ms), b"%09d" % number))
        answers += peer.write_many(RequestCode.SEND_MESSAGE_V2, headers)
        sent = due
        await asyncio.sleep(0.002)
    await asyncio.gather(*answers)
    took_s = time.perf_counter() - begin
    delay_ms = LEVELS_MS[level - 1]
    await asyncio.sleep(delay_ms / 1_000 + 2)
    parked = {r.body: r.store_ms for r in await pull_queue(peer, SCHEDULE, level - 1)}
    late_ms = [
        record.store_ms - parked[record.body] - delay_ms
        for queue_id in range(4)
        for record in await pull_queue(peer, topic, queue_id)
    ]
    assert len(late_ms) == rate * seconds
    await peer.close()
    case = "levels, beside the sends" if level == 1 else "levels, after the sends"
    report(case, per_second=round(sent / took_s), **lateness(late_ms))


async def timers(
    address: str, rate: int, seconds: int, case: str, *, at_once: bool, known: Timed
) -> None:
    """Send ``rate`` timers per second well before they are due, and measure their lateness."""
    randomness = random.Random(1)
    count = rate * seconds
    first = CLOCK.wall_ms() + LEAD_MS + count // 4
    first -= first % 1_000
    sent_before = set(known.acknowledged)

    def due(number: int, _: int) -> int:
        second = first + (number % seconds) * 1_000
        return second if at_once else second + randomness.randrange(1_000)

    await known.send(address, count, due)
    assert CLOCK.wall_ms() < first, "sending took longer than the lead"
    mine = set(known.acknowledged) - sent_before
    await asyncio.sleep((first - CLOCK.wall_ms()) / 1_000 + seconds + 1.5)
    found = await wait_for(address, mine, 60)
    late_ms = [found[key] - known.acknowledged[key] for key in mine]
    report(case, **lateness(late_ms))


def memory_mb(server: OurServer) -> int:
    """Return RssAnon of the broker, MB."""
    return proc_numbers(server.pid, "status")["RssAnon"] // 1_000


async def waiting(address: str) -> int:
    """Return the number of waiting messages."""
    return int((await runtime(address))["timerWaiting"])


def restart(server: OurServer, case: str, before: int, *, kill: bool) -> None:
    """Stop or kill the broker, start it, and compare the number of waiting messages."""
    server.kill() if kill else server.stop()
    begin = time.perf_counter()
    server.start()
    took_s = time.perf_counter() - begin
    address = server_address(server)
    after, memory = asyncio.run(waiting(address)), memory_mb(server)
    took_s = round(took_s, 3)
    report(case, start_s=took_s, waiting_before=before, waiting_after=after, rss_anon_mb=memory)
    assert before == after


async def fill(address: str, count: int, known: Timed) -> None:
    """Send messages that wait for a long time."""
    randomness = random.Random(2)
    begin = time.perf_counter()

    def due(_: int, now_ms: int) -> int:
        return now_ms + randomness.randrange(20 * 60_000, 3 * DAY_MS - 60_000)

    await known.send(address, count, due)
    took_s = time.perf_counter() - begin
    report("sends of timed messages", messages=count, per_second=round(count / took_s))


def fresh(server: OurServer, rate: int, seconds: int) -> None:
    """Measure with an empty broker."""
    address, known = server_address(server), Timed()
    for level in (1, 2):
        asyncio.run(levels(address, rate, seconds, level))
    asyncio.run(known.create_topic(address))
    for case, at_once in (("timers", False), ("timers, a second's at once", True)):
        asyncio.run(timers(address, rate, seconds, case, at_once=at_once, known=known))


def beside_waiting(server: OurServer, rate: int, seconds: int, count: int) -> None:
    """Measure with a broker that has very many waiting messages."""
    address, known = server_address(server), Timed()
    asyncio.run(known.create_topic(address))
    asyncio.run(fill(address, count, known))
    report("memory", waiting=asyncio.run(waiting(address)), rss_anon_mb=memory_mb(server))
    case = "timers beside those that wait"
    asyncio.run(timers(address, rate, seconds, case, at_once=False, known=known))
    restart(server, "stop and start", count, kill=False)
    restart(server, "kill and start", count, kill=True)
    address = server_address(server)
    asyncio.run(timers(address, rate, seconds, "after the kill", at_once=False, known=known))
    known.check(asyncio.run(deliveries(address)), CLOCK.wall_ms())


def server_address(server: OurServer) -> str:
    """Return the address where it serves."""
    return f"127.0.0.1:{server.port}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--part", choices=("fresh", "waiting", "both"), default="both")
    options = parser.parse_args()
    rate, seconds = options.rate, options.seconds
    for part in ("fresh", "waiting"):
        if options.part not in (part, "both"):
            continue
        with tempfile.TemporaryDirectory(dir=".", prefix="benchmark-delays-") as home:
            server = OurServer(Path(home), SETTINGS)
            server.start()
            try:
                if part == "fresh":
                    fresh(server, rate, seconds)
                else:
                    beside_waiting(server, rate, seconds, options.pending)
            finally:
                server.kill()


if __name__ == "__main__":
    main()
