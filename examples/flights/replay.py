"""Replays the flights into a topic: as fast as it goes, or so many times faster than in 2013.

    python -m examples.flights.replay 127.0.0.1:9876 --speed 3600 --progress flights.json

A message is a flight: its key is the tail number, its tag the carrier, its body the row as JSON,
and it was born when the flight left. Run again with the same ``--progress`` it goes on where it
ended. What was sent and not noted is sent again then, with the same message id.
"""

import argparse
import asyncio
import heapq
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from zlib import crc32

import msgspec
import uvloop

import cometmq
from cometmq.message.ids import lasting_key
from examples.flights.data import COUNT, Flight, flights

TOPIC = "flights"
IN_FLIGHT = 512
SAVE_EVERY_S = 1.0


def message_of(number: int, flight: Flight, topic: str = TOPIC) -> cometmq.Message:
    """The message of the ``number``-th flight; the same one has the same id in every run."""
    body = msgspec.json.encode(flight.row)
    return cometmq.Message(
        topic,
        body,
        tag=flight.carrier,
        keys=(flight.tail,) if flight.tail else (),
        message_id=lasting_key(number, flight.born_ms, crc32(body)),
        born_ms=flight.born_ms,
    )


@dataclass(slots=True)
class Progress:
    """How many flights, from the first one on, are stored; kept in a file if there is a path."""

    path: Path | None = None
    stored: int = 0
    _ahead: list[int] = field(default_factory=list)
    _saved_at: float = 0.0

    def load(self) -> None:
        """Go on where the file says."""
        if self.path is not None and self.path.exists():
            self.stored = json.loads(self.path.read_text())["stored"]

    def note(self, number: int) -> None:
        """The ``number``-th flight is stored; those before it may still be on their way."""
        heapq.heappush(self._ahead, number)
        while self._ahead and self._ahead[0] == self.stored:
            heapq.heappop(self._ahead)
            self.stored += 1

    def save(self, now_s: float = float("inf")) -> None:
        """Write the file, at most once a second."""
        if self.path is None or now_s < self._saved_at + SAVE_EVERY_S:
            return
        self._saved_at = now_s
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps({"stored": self.stored}))
        fresh.replace(self.path)


def due_s(born_ms: int, first_ms: int, speed: float) -> float:
    """When a flight is to be sent, in seconds after the first one; 0 for an infinite speed."""
    return (born_ms - first_ms) / 1000 / speed


async def replay(
    client: cometmq.Client,
    source: Iterable[Flight],
    *,
    topic: str = TOPIC,
    speed: float = float("inf"),
    progress: Progress | None = None,
) -> int:
    """Send the flights that ``progress`` does not have yet, in order; gives how many that were.

    ``speed`` is seconds of 2013 a second. At most IN_FLIGHT messages wait for their broker. Raises
    what a send raises; ``progress`` has what was stored until then.
    """
    progress = progress or Progress()
    start = progress.stored
    room = asyncio.Semaphore(IN_FLIGHT)

    async def send(number: int, flight: Flight) -> None:
        try:
            message = message_of(number, flight, topic)
            await client.send(message, order_key=flight.order_key)
            progress.note(number)
        finally:
            room.release()

    first_ms, started_s = None, time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for number, flight in enumerate(islice(source, start, None), start):
                first_ms = flight.born_ms if first_ms is None else first_ms
                ahead_s = started_s + due_s(flight.born_ms, first_ms, speed) - time.monotonic()
                if ahead_s > 0:
                    progress.save(time.monotonic())
                    await asyncio.sleep(ahead_s)
                await room.acquire()
                group.create_task(send(number, flight))
                progress.save(time.monotonic())
    finally:
        progress.save()
    return progress.stored - start


def parse_speed(text: str) -> float:
    """``max``, or how many times faster than in 2013. Raises ValueError for anything else."""
    speed = float("inf") if text == "max" else float(text)
    if not speed > 0:
        raise ValueError(f"speed {text!r} is not more than 0")
    return speed


async def main(options: argparse.Namespace) -> None:
    """Replay as the command line says."""
    progress = Progress(options.progress)
    progress.load()
    started_s = time.monotonic()
    async with cometmq.Client(options.nameservers) as client:
        source = islice(flights(), options.limit)
        sent = await replay(
            client, source, topic=options.topic, speed=options.speed, progress=progress
        )
    seconds = time.monotonic() - started_s
    print(f"{sent:,} flights in {seconds:.1f} s, {sent / seconds:,.0f} a second")


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.replay")
    parser.add_argument("nameservers", nargs="?", default="127.0.0.1:9876")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--speed", type=parse_speed, default=float("inf"), metavar="N|max")
    parser.add_argument("--limit", type=int, default=COUNT, help="the first so many flights")
    parser.add_argument("--progress", type=Path, help="the file that remembers what is stored")
    return parser


if __name__ == "__main__":
    uvloop.run(main(arguments().parse_args()))
