"""Replays the flights into a topic, as fast as possible or at a multiple of the speed of 2013.

    python -m examples.flights.replay 127.0.0.1:9876 --speed 3600 --progress flights.json

A message is a flight: its key is the tail number, its tag the carrier, its body the row as JSON,
and its birth time the departure. With the same ``--progress`` file, another run continues where the
last one ended. A flight that was sent but not recorded is sent again, with the same message id.
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
    """Return the message of the ``number``-th flight. Its id is the same in every run."""
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
    """Number of flights, counted from the first, that are stored. With a path it is kept in a
    file."""

    path: Path | None = None
    stored: int = 0
    _ahead: list[int] = field(default_factory=list)
    _saved_at: float = 0.0

    def load(self) -> None:
        """Load the number from the file."""
        if self.path is not None and self.path.exists():
            self.stored = json.loads(self.path.read_text())["stored"]

    def note(self, number: int) -> None:
        """Record that the ``number``-th flight is stored. Earlier ones may still be in flight."""
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
    """Return the time to send a flight, in seconds after the first one; 0 for an infinite speed."""
    return (born_ms - first_ms) / 1000 / speed


async def replay(
    client: cometmq.Client,
    source: Iterable[Flight],
    *,
    topic: str = TOPIC,
    speed: float = float("inf"),
    progress: Progress | None = None,
) -> int:
    """Send the flights after ``progress``, in order. Return their number.

    ``speed`` is seconds of 2013 per second. At most IN_FLIGHT messages wait for an acknowledgement.
    Raises the errors of sends; ``progress`` then has what was stored.
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
    """Parse ``max``, or a multiple of the speed of 2013. Raises ValueError for other text."""
    speed = float("inf") if text == "max" else float(text)
    if not speed > 0:
        raise ValueError(f"speed {text!r} is not more than 0")
    return speed


async def main(options: argparse.Namespace) -> None:
    """Replay with the options of the command line."""
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
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.replay")
    parser.add_argument("nameservers", nargs="?", default="127.0.0.1:9876")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--speed", type=parse_speed, default=float("inf"), metavar="N|max")
    parser.add_argument("--limit", type=int, default=COUNT, help="the first so many flights")
    parser.add_argument("--progress", type=Path, help="the file that remembers what is stored")
    return parser


if __name__ == "__main__":
    uvloop.run(main(arguments().parse_args()))
