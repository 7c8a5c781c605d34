"""The parsers of the compiled core beside plain Python: what either makes of any bytes is the same.

Each of COMPARED takes a text, gives it to both cores, and looks at all that can be seen of the
outcome. It counts the texts of which something went the fast way: a comparison of refusals alone
would prove nothing.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final

from cometmq.filter.sql92 import SqlFilter
from cometmq.message import batch
from cometmq.message.record import Record, pack
from tests.conftest import cores
from tests.hostile import grammar as g
from tests.speedups import (
    test_pullanswers,
    test_pulls,
    test_requests,
    test_sends,
    test_transactions,
)

#: Gives what a core made of a text, and whether any of it went the fast way.
Run = Callable[[SimpleNamespace, bytes], tuple[object, bool]]

BASE: Final = 1 << 20
TOPIC: Final = "t"
HOST: Final = bytes(range(8))
NOW_MS: Final = 1_800_000_000_000
QUEUE: Final = (1, b"\x01t")
_ENTRY: Final = Struct(">qiq")
_PLACE: Final = Struct(">qq")
_FILTER: Final = SqlFilter("a > 1.5 OR a IN ('eu', 'us') OR KEYS CONTAINS 'k'")


class CoresDiffer(Exception):
    """Both cores were given the same text, and did not make the same of it."""


class Compared:
    """One comparison. ``fast`` texts went the fast way so far."""

    def __init__(self, name: str, run: Run, grammar: g.Grammar) -> None:
        self.name = name
        self.grammar = grammar
        self.fast = 0
        self._run = run

    def __call__(self, data: bytes) -> object:
        """Compare. Raises CoresDiffer."""
        (first, is_fast), *others = [self._run(core, data) for core in cores()]
        for other, _ in others:
            if other != first:
                raise CoresDiffer(f"{self.name}: {first!r:.300} and {other!r:.300}")
        self.fast += is_fast
        return first


def record(number: int, properties: bytes = b"a\x012\x02KEYS\x01k 1\x02TAGS\x01red") -> bytes:
    """The record of a queue offset; all are equally long."""
    made = pack(
        Record(
            0, 0, QUEUE[0], 3, number, 0, 0, 5, HOST, NOW_MS, HOST, 0, 0, b"body%d" % number, TOPIC,
            properties,
        )
    )  # fmt: skip
    at = 28
    place = BASE + number * len(made)
    return made[:at] + place.to_bytes(8, "big") + made[at + 8 :]


RECORDS: Final = tuple(record(number) for number in range(3))
LOG: Final = b"".join(RECORDS)
ENTRIES: Final = b"".join(
    _ENTRY.pack(BASE + number * len(RECORDS[0]), len(RECORDS[0]), 5) for number in range(3)
)


def _send(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as the header of a send, between two plain ones."""
    world = test_sends.World(core)
    plain = test_sends.framed(test_sends.header_of())
    found = world.append(plain + test_sends.framed(data) + plain)
    return (found, world.outcome()), found[0] == 3


def _ending(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as the header of what ends the one open transaction."""
    world = test_transactions.World(core)
    world.prepare()
    found = world.append(test_sends.framed(data, b""))
    return (found, world.outcome()), found[0] == 1


def _half(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as what is in memory of the log where a transaction that is committed began."""
    world = test_transactions.World(core)
    half = world.prepare()
    before, world.log = world.log, world.log[: half[1]] + bytearray(data)
    found = world.append(test_sends.framed(test_transactions.end_header(half), b""))
    added = bytes(world.log[half[1] + len(data) :])
    world.log = before
    return (found, added, world.batch.rows_from(1) == [], world.halves()), found[0] == 1


def _answer(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as the header of what a broker answers to one of two sends."""
    waiting = test_requests.waiting_sends(7, 8)
    waiters = [waiting[opaque][1] for opaque in (7, 8)]
    found = core.settle_plain(test_requests.framed(data), 0, waiting)
    results = [waiter.results for waiter in waiters]
    return (found, results, list(waiting)), len(waiting) == 1


def _pull(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as the header of a pull, which is answered when it asks for what there is."""
    frame = test_pullanswers.framed(data)
    world = test_pullanswers.World(core)
    taken = world.take(frame)
    return (core.read_pull(frame, 0), taken, world.seen), taken[1] > 0


def _pulled(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as entries of a queue, the first two of its file, and the log that they lead into."""
    found: list[object] = []
    taken = 0
    for wanted, proof in (
        (test_pullanswers.EVERYTHING, test_pulls.QUEUE),
        (test_pullanswers.EVERYTHING, None),
        (test_pullanswers.filtered()(core), test_pulls.QUEUE),
    ):
        world = test_pullanswers.World(core, count=3, tail_offset=2, wanted=wanted, proof=proof)
        world.entries[:] = data[: len(world.entries)]
        world.queue.tail = world.entries[2 * _ENTRY.size :]
        world.log[:] = data[len(world.entries) :]
        frames = b"".join(test_pullanswers.pull(offset) for offset in (0, 1, 2, 3))
        found += [world.take(frames), world.seen]
        taken += world.totals.found
    return found, taken > 0


def _pulled_log() -> bytes:
    world = test_pullanswers.World(cores()[0], count=3)
    return bytes(world.entries + world.log)


def _cut(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as the body of what a pull was answered."""
    found = core.cut_records(data, lambda *parts: parts, "b")
    return None if found is None else list(found), bool(found)


def _walk(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as a piece of a log, whose rows a write batch adopts."""
    found = [
        core.walk(data, 0, len(data), base, (1_000, 5_000), check_crc=check_crc)
        for base, check_crc in ((BASE, True), (None, False))
    ]
    queue = core.QueueState()
    rows = core.WriteBatch()
    walked = found[1]
    adopted = rows.adopt(walked.rows, walked.hashes, [queue] * len(walked.queues), BASE)
    seen = [row[1:] for row in rows.rows_from(0)], rows.index_columns(), rows.entry_rows()
    checked = core.check_records(data, 0, len(data), BASE)
    return (found, adopted, seen, checked), found[0].row_count > 0


def _match(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as entries of a queue and the log that they lead into."""
    entries, log = data[: len(ENTRIES)], data[len(ENTRIES) :]
    bounds = (memoryview(log), BASE, BASE, BASE + len(log), BASE + len(log))
    program = core.Program(_FILTER.program.code)
    found: list[object] = []
    asked: list[tuple[int, int]] = []

    def has_at_once(start: int, stop: int) -> bool:
        asked.append((start, stop))
        return True

    matched = 0
    for queue in (QUEUE, None):
        looked = core.match_records(
            program, entries, 0, (32, 1 << 20), (100, 1 << 20), bounds, queue, has_at_once
        )
        taken = core.take_records(entries, 0, None, (32, 1 << 20), bounds, queue, has_at_once)
        found += [looked, None if taken is None else (*taken[:3], bytes(taken[3]))]
        matched += looked[0]
    return (found, asked), matched > 0


def _batch(core: SimpleNamespace, data: bytes) -> tuple[object, bool]:
    """A text as the body of a batch, which is taken at once, and in parts."""
    world = test_sends.World(core)
    queue, middle, common = world.queues[b"t"][0], bytes(48), b"KEYS\x01all"
    try:
        size, packed = core.append_batch(
            world.batch, data, queue, middle, common, 100, 1 << 20, NOW_MS
        )
    except ValueError as error:
        return str(error), False
    taken = packed, world.batch.index_columns(), world.batch.entry_rows(), queue.next_offset
    queue.next_offset = 5
    total, parts = core.pack_batch(data, queue, bytes(48), common, 1 << 20, 2)
    position, found = 100, [b""] * 5
    for rows, records in parts:
        core.place_batch(rows, records, queue, middle, position, NOW_MS)
        position += len(records)
        pieces = (bytes(records), *rows.index_columns(), rows.entry_rows())
        found = [before + more for before, more in zip(found, pieces, strict=True)]
    again = found[0], tuple(found[1:4]), found[4], queue.next_offset
    if packed and (again != taken or total != size):
        raise CoresDiffer(f"{core.name}: in parts {again!r:.300}, at once {taken!r:.300}")
    return (size, taken), bool(packed)


def _with(base: g.Grammar, wholes: Sequence[bytes]) -> g.Grammar:
    return g.Grammar(tokens=base.tokens, brackets=base.brackets, wholes=wholes)


def _half_record() -> bytes:
    world: Any = test_transactions.World(cores()[0])
    _, place = world.prepare()
    return bytes(world.log[place:])


_JSON: Final = g.Grammar(tokens=(b'"', b":", b",", b"\\", b"0", b"\\u0041", b'"', b"{", b"}"))
_BATCH: Final = batch.pack(
    [(1, b"one", b"KEYS\x01a b"), (0, b"", b""), (2, b"3", b"TAGS\x01t\x02")]
)

COMPARED: Final = (
    Compared(
        "a send in both cores",
        _send,
        _with(
            _JSON,
            (
                test_sends.header_of(),
                test_sends.header_of({"b": "ü漢", "e": "0", "i": "KEYS\x01ä \\ \x02x\x01\t"}),
            ),
        ),
    ),
    Compared(
        "an end of a transaction in both cores",
        _ending,
        _with(
            _JSON,
            (
                test_transactions.end_header((5, 64)),
                test_transactions.end_header((5, 64), test_transactions.ROLLBACK),
            ),
        ),
    ),
    Compared("a half message in both cores", _half, _with(g.BINARY, (_half_record(),))),
    Compared(
        "an answer in both cores",
        _answer,
        _with(_JSON, (test_requests.header_of(), test_requests.header_of({"version": 3}))),
    ),
    Compared("a pull in both cores", _pull, _with(_JSON, (test_pullanswers.header_of(),))),
    Compared("pulled records in both cores", _pulled, _with(g.BINARY, (_pulled_log(),))),
    Compared("messages in both cores", _cut, _with(g.BINARY, (LOG, RECORDS[0]))),
    Compared("a walk in both cores", _walk, _with(g.BINARY, (LOG, RECORDS[0]))),
    Compared("a match in both cores", _match, _with(g.BINARY, (ENTRIES + LOG,))),
    Compared("a batch in both cores", _batch, _with(g.BINARY, (_BATCH,))),
)
