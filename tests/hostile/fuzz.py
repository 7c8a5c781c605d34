"""A fuzzer of the sans-I/O core and of a broker's handlers, guided by coverage (Atheris).

    python -m tests.hostile.fuzz core|handlers [--seconds N] [--seed N] [--corpus DIR]

It ends with 0 when nothing was found; else it says what, and which input did it. Where Atheris is
not installed, the same targets get seeded mutations without coverage.

`core`: the first byte chooses one of the parsers of parsers.py; any error but the parser's own is a
finding, and so is a time above its share. `handlers`: the input is a frame, or, when its first byte
is odd, raw bytes; a real broker in this process gets it. Findings: an error that is not the
protocol's own, a turn longer than its bound, memory that grows, a connection out of step.
"""

import argparse
import asyncio
import logging
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

try:
    import atheris
except ImportError:
    atheris = None

if __name__ == "__main__" and atheris is not None:
    # What is imported here first counts as covered or not; the rest of the program need not.
    with atheris.instrument_imports(include=["cometmq"]):
        import cometmq.broker.app  # noqa: F401
        import tests.hostile.parsers  # noqa: F401

from tests.hostile import frames
from tests.hostile.grammar import shapes
from tests.hostile.parsers import PARSERS, Parser

INPUT_MAX_BYTES = 8_192
#: One input may take so long, of processor time; the least of several runs counts.
TURN_MS = 300.0
MEMORY_GROWTH_MAX_KB = 600 * 1024
STEP_OPAQUE = 0x5A5A5A5A

Target = Callable[[bytes], None]


class Finding(Exception):
    """What the fuzzer found."""


def core_target(parsers: list[Parser]) -> Target:
    """Feeds an input to the parser that its first byte names."""

    def run(data: bytes) -> None:
        if not data:
            return
        parser = parsers[data[0] % len(parsers)]
        text = data[1 : 1 + parser.bound_bytes]
        # Instrumented code takes some times as long as it does elsewhere.
        allowed_ms = 4 * (30 + 10 * parser.factor * len(text) / 65_536)
        if _run_ms(parser, text) > allowed_ms:
            took_ms = min(_run_ms(parser, text) for _ in range(3))
            if took_ms > allowed_ms:
                raise Finding(f"{parser.name} takes {took_ms:.0f} ms for {len(text)} bytes")

    return run


def _run_ms(parser: Parser, text: bytes) -> float:
    before = time.process_time()
    with suppress(*parser.refuses):
        parser.run(text)
    return (time.process_time() - before) * 1000


def core_seeds(parsers: list[Parser]) -> list[bytes]:
    """A short and a long text of some shapes of each parser."""
    return [
        (bytes((number,)) + shape(size))[:INPUT_MAX_BYTES]
        for size in (60, 6_000)
        for number, parser in enumerate(parsers)
        for _, shape in list(shapes(parser.grammar))[::4]
    ]


class Surprises(logging.Handler):
    """Keeps what was logged with an error that no handler expects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            said = f"{record.getMessage()} {record.exc_info[0]} {record.exc_info[1]}"
            self.found.append(said[:400])


class Served:
    """A broker in this process and one connection to it."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.surprises = Surprises()
        logging.getLogger().handlers[:] = [self.surprises]
        self._broker = self.loop.run_until_complete(_start(directory))
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.inputs = 0
        self._memory_kb = 0

    def run(self, data: bytes) -> None:
        """Send an input; raise Finding for what it broke."""
        if not data:
            return
        is_raw, rest = data[0] & 1, data[1:]
        before = time.process_time()
        if is_raw:
            self.loop.run_until_complete(self._send_raw(rest))
        else:
            self.loop.run_until_complete(self._send_framed(rest))
        took_ms = (time.process_time() - before) * 1000
        self.inputs += 1
        self._judge(took_ms, data)

    def _judge(self, took_ms: float, data: bytes) -> None:
        if self.surprises.found:
            raise Finding(self.surprises.found[0])
        if took_ms > TURN_MS:
            times = []
            for _ in range(2):
                before = time.process_time()
                self.loop.run_until_complete(self._send_framed(data[1:]))
                times.append((time.process_time() - before) * 1000)
            if min(times) > TURN_MS:
                raise Finding(f"a frame of {len(data)} bytes takes {min(times):.0f} ms")
        if self.inputs % 500 == 0:
            held_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self._memory_kb = self._memory_kb or held_kb
            if held_kb - self._memory_kb > MEMORY_GROWTH_MAX_KB:
                raise Finding(f"memory grew from {self._memory_kb} to {held_kb} KB")

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._line is None:
            self._line = await asyncio.open_connection("127.0.0.1", self._broker.port)
        return self._line

    async def _send_raw(self, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
        writer.write(data)
        writer.write_eof()
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(0.005):
                await reader.read(1)
        writer.transport.abort()

    async def _send_framed(self, data: bytes) -> None:
        """Send a frame and a request that is known; its answer has to come."""
        if len(data) < 4:
            return
        word = int.from_bytes(data[:4], "big")
        size = min(word & 0xFFFFFF, len(data) - 4)
        frame = frames.joined(word >> 24, data[4 : 4 + size], data[4 + size :])
        if frames.with_codes_left_out(frame):
            return
        head = b'{"code":38,"extFields":{"group":"g"},"flag":0,"opaque":%d}' % STEP_OPAQUE
        reader, writer = await self._connected()
        writer.write(frame + frames.joined(0, head, b""))
        try:
            async with asyncio.timeout(20):
                while await answered_opaque(reader) != STEP_OPAQUE:
                    pass
        except TimeoutError:
            raise Finding(f"no answer in step after {frame[:200]!r}") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
            self._line = None

    def stop(self) -> None:
        """Stop the broker, in good order."""
        if self._line is not None:
            self._line[1].transport.abort()
        self.loop.run_until_complete(self._broker.stop())
        self.loop.close()


async def answered_opaque(reader: asyncio.StreamReader) -> int:
    """The opaque of the next frame that the broker sends."""
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    frame = await reader.readexactly(size)
    (word,) = struct.unpack_from(">I", frame)
    header = frame[4 : 4 + (word & 0xFFFFFF)]
    from cometmq.protocol.frame import decode_head

    return decode_head(word >> 24, header).opaque


async def _start(directory: Path) -> Any:
    from cometmq.broker.app import Broker
    from cometmq.broker.config import load
    from cometmq.core.clock import SystemClock

    config, store_config, _ = load(
        {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "storePathRootDir": str(directory),
            "mappedFileSizeCommitLog": str(4 << 20),
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "10000",
        }
    )
    broker = Broker(config, store_config, SystemClock())
    await broker.start()
    return broker


def handler_seeds() -> list[bytes]:
    """The captured requests, as inputs."""
    return [b"\x00" + frame[4:] for frame in frames.golden_frames()]


def mutate_frame(data: bytes, max_size: int, seed: int) -> bytes:
    """Another input of `handlers`: now and then with fields changed, else as Atheris does it."""
    chance = Random(seed)
    if chance.randrange(2):
        return bytes(atheris.Mutate(data, max_size))
    return _mutated(data, max_size, chance)


def _mutated(data: bytes, max_size: int, chance: Random) -> bytes:
    """Another input, with fields of its frame changed."""
    whole = struct.pack(">I", max(0, len(data) - 1)) + data[1:]
    if len(whole) < 9:
        return data
    return (data[:1] + frames.mutated([whole], chance)[4:])[:max_size]


def fuzz(target: Target, seeds: list[bytes], seconds: float, seed: int) -> int:
    """Mutate seeds without coverage, for so long; gives the number of inputs. Raises Finding."""
    chance, end, count = Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = chance.choice(seeds)
        data = _mutated(data, INPUT_MAX_BYTES, chance) if count >= len(seeds) else seeds[count]
        try:
            target(data)
        except Finding:
            raise
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error} for {data[:200]!r}") from error
        count += 1
    return count


def run_guided(target: Target, seeds: list[bytes], options: argparse.Namespace) -> None:
    """Give the process to Atheris, which ends it."""
    corpus = Path(options.corpus or tempfile.mkdtemp(prefix="cometmq-corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number:05d}").write_bytes(data)
    words = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        f"-max_len={INPUT_MAX_BYTES}",
        "-rss_limit_mb=4096",
        "-timeout=60",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={corpus}/found-",
        str(corpus),
    ]
    mutators = {"custom_mutator": mutate_frame} if options.target == "handlers" else {}
    atheris.Setup(words, target, **mutators)
    atheris.Fuzz()


def main(words: list[str]) -> int:
    """Run one target; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="tests.hostile.fuzz")
    parser.add_argument("target", choices=("core", "handlers"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", default="")
    parser.add_argument("--unguided", action="store_true", help="no coverage, even with Atheris")
    parser.add_argument("--only", default="", help="one parser of the core, by its name")
    options = parser.parse_args(words)
    if options.target == "core":
        chosen = list(PARSERS)
        if options.only:
            chosen = [each for each in PARSERS if each.name == options.only]
        target, seeds = core_target(chosen), core_seeds(chosen)
    else:
        target, seeds = Served(Path(tempfile.mkdtemp(prefix="cometmq-fuzz-"))).run, handler_seeds()
    if atheris is not None and not options.unguided:
        run_guided(target, seeds, options)
    try:
        count = fuzz(target, seeds, options.seconds, options.seed)
    except Finding as finding:
        print(f"found: {finding}")
        return 1
    print(f"{options.target}: {count} inputs, nothing found")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
