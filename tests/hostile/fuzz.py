"""A fuzzer of the sans-I/O core and of a broker's handlers, guided by coverage (Atheris).

    python -m tests.hostile.fuzz core|handlers|queues [--seconds N] [--seed N] [--corpus DIR]

It ends with 0 when nothing was found; else it says what, and which input did it. With `--all` it
goes on and tells one finding of each kind, with the seconds that it took. Where Atheris is not
installed, the same targets get seeded mutations without coverage.

`core` feeds the parsers (core.py), `queues` changes queue files under a broker (pulls.py).
`handlers`: the input is a frame, or, when its first byte is odd, raw bytes; a real broker in this
process gets it. Findings: an error that is not the protocol's own, a turn longer than its bound,
memory that grows, a connection out of step.
"""

import argparse
import asyncio
import json
import logging
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
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

from cometmq.core.errors import CometError
from cometmq.net.eventloop import loop_factory
from cometmq.protocol.frame import decode_head
from tests.hostile import core, frames, grammar, pulls, pumped
from tests.hostile.finding import Finding
from tests.hostile.parsers import PARSERS
from tests.hostile.queues import ENTRIES
from tests.pace import slowness

INPUT_MAX_BYTES = 8_192
#: One input may take so long, of processor time; the least of several runs counts.
TURN_MS = 300.0
MEMORY_GROWTH_MAX_KB = 600 * 1024
STEP_OPAQUE = 0x5A5A5A5A
#: A request whose answer is known.
STEP = frames.joined(
    0, b'{"code":38,"extFields":{"group":"g"},"flag":0,"opaque":%d}' % STEP_OPAQUE, b""
)
ANSWER_SECONDS = 5
#: What bodies and fields of requests are written in.
FIELD_GRAMMARS = (grammar.JSON, grammar.SQL, grammar.SQL, grammar.PROPERTIES, grammar.TAGS)
#: Fields that are read as texts, and what they are written in.
TEXT_FIELDS = {
    "subscription": (grammar.SQL, grammar.SQL, grammar.TAGS),
    "i": (grammar.PROPERTIES,),
    "properties": (grammar.PROPERTIES,),
}

Target = Callable[[bytes], None]
#: Another input from one, no longer than so many bytes.
Mutate = Callable[[bytes, int, Random], bytes]


class Surprises(logging.Handler):
    """Keeps what was logged with an error that no handler expects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[Finding] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            kind = record.exc_info[0]
            name = "error" if kind is None else kind.__name__
            said = f"{record.getMessage()} {record.exc_info[1]}"
            self.found.append(Finding(f"an unexpected {name}", said[:400]))


class Served:
    """A broker in this process and one connection to it."""

    def __init__(self, directory: Path) -> None:
        self.loop = loop_factory()()
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
            first, *_ = self.surprises.found
            self.surprises.found.clear()
            raise first
        if took_ms > TURN_MS:
            times = []
            for _ in range(2):
                before = time.process_time()
                self.loop.run_until_complete(self._send_framed(data[1:]))
                times.append((time.process_time() - before) * 1000)
            if min(times) > TURN_MS * slowness():
                said = f"{min(times):.0f} ms for {len(data)} bytes"
                raise Finding("a turn is long", said)
        if self.inputs % 500 == 0:
            held_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self._memory_kb = self._memory_kb or held_kb
            if held_kb - self._memory_kb > MEMORY_GROWTH_MAX_KB:
                raise Finding("memory grew", f"from {self._memory_kb} to {held_kb} KB")

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._line is None:
            self._line = await asyncio.open_connection("127.0.0.1", self._broker.port)
        return self._line

    async def ask(self, frame: bytes) -> tuple[bytes, bytes]:
        """Send a frame of `pulls`; gives header and body of its answer. A known request goes with
        it: nothing but the answers to the two may come."""
        reader, writer = await self._connected()
        writer.write(frame + STEP)
        answers = {}
        with suppress(TimeoutError, CometError, ConnectionError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ANSWER_SECONDS):
                for _ in range(2):
                    codec, header, body = await read_frame(reader)
                    answers[decode_head(codec, header).opaque] = header, body
        if answers.keys() != {pulls.OPAQUE, STEP_OPAQUE}:
            writer.transport.abort()
            self._line = None
            raise Finding("the connection is out of step", f"after {frame[:200]!r}")
        return answers[pulls.OPAQUE]

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
        reader, writer = await self._connected()
        writer.write(frame + STEP)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while await answered_opaque(reader) != STEP_OPAQUE:
                    pass
        except TimeoutError:
            raise Finding("no answer in step", f"after {frame[:200]!r}") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
            self._line = None

    def check(self, queue: pulls.DamagedQueue, data: bytes) -> None:
        """Read a queue that is changed as an input says. Raises Finding."""
        if data:
            self.loop.run_until_complete(queue.check(data, self.ask))
            self._judge(0, data)

    def stop(self) -> None:
        """Stop the broker, in good order."""
        if self._line is not None:
            self._line[1].transport.abort()
        self.loop.run_until_complete(self._broker.stop())
        self.loop.close()


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Codec, header and body of the next frame that the broker sends."""
    prefix = await reader.readexactly(4)
    (size,) = struct.unpack(">I", prefix)
    return frames.parts(prefix + await reader.readexactly(size))


async def answered_opaque(reader: asyncio.StreamReader) -> int:
    """The opaque of the next frame that the broker sends."""
    codec, header, _ = await read_frame(reader)
    return decode_head(codec, header).opaque


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
    """The captured requests, and a pull by an expression, as inputs."""
    return [b"\x00" + frame[4:] for frame in (*frames.golden_frames(), pulls.PULL_BY_EXPRESSION)]


def other_frame(data: bytes, max_size: int, chance: Random) -> bytes:
    """Return another input of `handlers`: its frame with other fields, or a long text in it.

    Half of the long texts go into a frame that has a field for one: few captured frames do.
    """
    whole = struct.pack(">I", max(0, len(data) - 1)) + data[1:]
    kind = chance.randrange(4)
    try:
        if kind == 0:
            frame = chance.choice(frames_with_texts())
            return (b"\x00" + _lengthened(frame, max_size - 512, chance)[4:])[:max_size]
        if len(whole) < 9:
            return data
        if kind == 1:
            other = _lengthened(whole, max_size - 512, chance)
        else:
            other = frames.mutated([whole], chance)
    except UnicodeEncodeError:
        return data  # half a pair of surrogates, spelled out in its header
    return (data[:1] + other[4:])[:max_size]


@cache
def frames_with_texts() -> list[bytes]:
    """Return the requests of `handler_seeds` that have one of TEXT_FIELDS."""
    return [
        frame
        for frame in (*frames.golden_frames(), pulls.PULL_BY_EXPRESSION)
        if TEXT_FIELDS.keys() & (_head_and_fields(frames.parts(frame)[1])[1]).keys()
    ]


def _head_and_fields(header: bytes) -> tuple[dict[str, object], dict[str, object]]:
    """Return a JSON header and the fields in it; two empty ones for a header that is none."""
    with suppress(ValueError):
        head = json.loads(header)
        if isinstance(head, dict):
            fields = head.get("extFields")
            return head, fields if isinstance(fields, dict) else {}
    return {}, {}


def _lengthened(frame: bytes, size: int, chance: Random) -> bytes:
    """Return a frame whose body, or one field of it, is a text with parts that repeat."""
    codec, header, body = frames.parts(frame)
    head, fields = _head_and_fields(header)
    texts = [name for name in TEXT_FIELDS if name in fields]
    if texts and chance.randrange(2):
        name = chance.choice(texts)
        text = _long_text(TEXT_FIELDS[name], size, chance)
    else:
        text = _long_text(FIELD_GRAMMARS, size, chance)
        if not fields or chance.randrange(3) == 0:
            return frames.joined(codec, header, text)
        name = chance.choice([*fields])
    fields[name] = text.decode(errors="replace")
    longer = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    return frames.joined(codec, longer, body)


def _long_text(grammars: Sequence[grammar.Grammar], size: int, chance: Random) -> bytes:
    grown = pumped.grown(chance.choice(grammars), chance)
    return pumped.unpacked(grown).text(chance.choice((200, 2_000, size)))


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is fuzzed: a target, inputs to begin with, how they change, words to change them by."""

    target: Target
    seeds: list[bytes]
    mutate: Mutate
    words: list[bytes]


def campaign_of(name: str, directory: Path, only: str = "") -> Campaign:
    """The campaign of a target; `only` names one parser of the core."""
    if name == "core":
        # Queue files have a target of their own, which is faster.
        chosen = [each for each in PARSERS if each.grammar is not ENTRIES]
        if only:
            chosen = [each for each in PARSERS if each.name == only]
        words = pumped.words_of([each.grammar for each in chosen])
        return Campaign(
            core.core_target(chosen),
            core.core_seeds(chosen),
            lambda data, most, chance: core.other_input(chosen, data, chance)[:most],
            words,
        )
    served = Served(directory)
    if name == "queues":
        served.loop.run_until_complete(pulls.fill(served.ask))
        served.stop()
        served = Served(directory)
        queue = pulls.DamagedQueue(directory)
        return Campaign(
            lambda data: served.check(queue, data),
            pulls.seeds(),
            lambda data, most, chance: pulls.other_input(data, chance)[:most],
            [],
        )
    served.loop.run_until_complete(pulls.fill(served.ask, ["golden"] * 400))
    return Campaign(served.run, handler_seeds(), other_frame, pumped.words_of(FIELD_GRAMMARS))


def fuzz(campaign: Campaign, seconds: float, seed: int) -> int:
    """Mutate seeds without coverage, for so long; gives the number of inputs. Raises Finding."""
    chance, end, count = Random(seed), time.monotonic() + seconds, 0
    seeds, data = campaign.seeds, b""
    while time.monotonic() < end:
        if count < len(seeds):
            data = seeds[count]
        else:
            before = data if chance.randrange(3) else chance.choice(seeds)
            data = campaign.mutate(before, INPUT_MAX_BYTES, chance)
        try:
            campaign.target(data)
        except Finding:
            raise
        except Exception as error:
            said = f"{error} for {data[:200]!r}"
            raise Finding(type(error).__name__, said) from error
        count += 1
    return count


class Told:
    """Calls a target, and tells the first finding of each kind with its time and size."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._begin = time.monotonic()
        self.inputs = 0
        self.kinds: set[str] = set()

    def __call__(self, data: bytes) -> None:
        """Give an input to the target."""
        self.inputs += 1
        try:
            self._target(data)
        except Exception as error:
            kind = getattr(error, "kind", type(error).__name__)
            if kind in self.kinds:
                return
            self.kinds.add(kind)
            after = time.monotonic() - self._begin
            said = f"found after {after:.1f} s, {self.inputs} inputs: {error!s:.200}"
            print(f"{said}\n  by {len(data)} bytes: {data[:80]!r}", flush=True)


def run_guided(campaign: Campaign, options: argparse.Namespace) -> None:
    """Give the process to Atheris, which ends it."""
    corpus = Path(options.corpus or tempfile.mkdtemp(prefix="cometmq-corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(campaign.seeds):
        (corpus / f"seed-{number:05d}").write_bytes(data)
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in campaign.words)
    dictionary = corpus.with_suffix(".words")
    dictionary.write_text("".join(f'"{word}"\n' for word in escaped))
    words = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        f"-max_len={INPUT_MAX_BYTES}",
        *([f"-dict={dictionary}"] if campaign.words else []),
        "-rss_limit_mb=4096",
        "-timeout=60",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={corpus}/found-",
        str(corpus),
    ]

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.randrange(4) == 0:
            return bytes(atheris.Mutate(data, max_size))
        return campaign.mutate(data, max_size, chance)

    atheris.Setup(words, campaign.target, custom_mutator=mutate)
    atheris.Fuzz()


def main(words: list[str]) -> int:
    """Run one target; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="tests.hostile.fuzz")
    parser.add_argument("target", choices=("core", "handlers", "queues"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", default="")
    parser.add_argument("--unguided", action="store_true", help="no coverage, even with Atheris")
    parser.add_argument("--only", default="", help="one parser of the core, by its name")
    parser.add_argument("--all", action="store_true", help="go on after a finding")
    options = parser.parse_args(words)
    directory = Path(tempfile.mkdtemp(prefix="cometmq-fuzz-"))
    campaign = campaign_of(options.target, directory, options.only)
    told = Told(campaign.target)
    if options.all:
        campaign = replace(campaign, target=told)
    if atheris is not None and not options.unguided:
        run_guided(campaign, options)
    try:
        count = fuzz(campaign, options.seconds, options.seed)
    except Finding as finding:
        print(f"found: {finding}")
        return 1
    print(f"{options.target}: {count} inputs, {len(told.kinds)} kinds of findings")
    return 1 if told.kinds else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
