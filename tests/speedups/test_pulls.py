"""Reads of a queue: both cores take the same of any entries and any log, and stay within them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.message.record import BORN_HOST_V6, HEAD, MAGIC_V1, MAGIC_V2, STORE_HOST_V6
from cometmq.store.layout import HOLE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tests.conftest import cores

TOPIC = b"\x06orders"
OTHER = b"\x06others"
QUEUE = (3, TOPIC)
#: Where the log begins, and the offset of the queue's first entry.
BASE = 5_000
FIRST = 70


def record(
    place: int, offset: int, *, body: bytes = b"body", topic: bytes = TOPIC, sys_flag: int = 0,
    magic: int = MAGIC_V1,
) -> bytes:  # fmt: skip
    """A record of queue 3 of a topic."""
    hosts = [20 if sys_flag & bit else 8 for bit in (BORN_HOST_V6, STORE_HOST_V6)]
    length = b"\0" if magic == MAGIC_V2 else b""
    size = HEAD.size - 16 + sum(hosts) + len(body + length + topic) + 2 + 4
    head = HEAD.pack(
        size, magic, 0, 3, 0, offset, place, sys_flag, 0, b"", 0, b"", 0, 0, len(body)
    )  # fmt: skip
    born, store = (bytes(count) for count in hosts)
    head = head[:48] + born + head[56:64] + store + head[72:]
    return head + body + length + topic + b"\0\4" + b"k\1v\2"


@dataclass
class Log:
    """A log and the entries of one of its queues."""

    data: bytearray = field(default_factory=bytearray)
    entries: bytearray = field(default_factory=bytearray)
    count: int = 0

    def put(self, code: int = 0, **changes: Any) -> None:
        """Add a record with its entry."""
        place = BASE + len(self.data)
        packed = record(place, FIRST + self.count, **changes)
        self.entries += QUEUE_ENTRY.pack(place, len(packed), code)
        self.data += packed
        self.count += 1

    def put_other(self, size: int) -> None:
        """Add bytes that are of others."""
        self.data += bytes(size)

    @property
    def end(self) -> int:
        """Where the log ends."""
        return BASE + len(self.data)

    def take(
        self, core: SimpleNamespace, codes: frozenset[int] | None = None, *, count: int = 32,
        size: int = 1 << 20, low: int = BASE, high: int | None = None, sure: int = 0,
        queue: tuple[int, bytes] | None = QUEUE, waits: int = 1 << 40,
    ) -> tuple[tuple[int, int, int, bytes] | None, list[tuple[int, int]]]:  # fmt: skip
        """What a core takes, and what it asked for; from `waits` on bytes are not in memory."""
        asked: list[tuple[int, int]] = []

        def has_at_once(start: int, stop: int) -> bool:
            asked.append((start, stop))
            return stop <= waits

        bounds = (memoryview(self.data), BASE, low, self.end if high is None else high, sure)
        found = core.take_records(
            self.entries, FIRST, codes, (count, size), bounds, queue, has_at_once
        )
        return (None if found is None else (*found[:3], bytes(found[3]))), asked


@pytest.fixture
def log() -> Log:
    made = Log()
    for number in range(10):
        made.put(code=number % 3, body=bytes([number]) * number)
        if number % 2:
            made.put_other(100)
    return made


def records_of(log: Log, *numbers: int) -> bytes:
    found = b""
    for number in numbers:
        place, size, _ = QUEUE_ENTRY.unpack_from(log.entries, number * QUEUE_ENTRY_BYTES)
        found += log.data[place - BASE : place - BASE + size]
    return found


def test_all_some_and_those_with_a_tag(core: SimpleNamespace, log: Log) -> None:
    everything = records_of(log, *range(10))
    assert log.take(core)[0] == (10, 10, len(everything), everything)
    two = records_of(log, 0, 1)
    assert log.take(core, count=2)[0] == (2, 2, len(two), two)
    assert log.take(core, size=len(two))[0] == (2, 2, len(two), two)
    one = records_of(log, 0)
    assert log.take(core, size=len(two) - 1)[0] == (1, 1, len(one), one)
    assert log.take(core, size=0, count=0)[0] == (1, 1, len(one), one), "one is always taken"
    tagged = records_of(log, 2, 5, 8)
    assert log.take(core, frozenset({2}))[0] == (10, 3, len(tagged), tagged)
    # What follows the last that is taken was looked at, up to the next one that is wanted.
    some = records_of(log, 2, 5)
    assert log.take(core, frozenset({2}), count=2)[0] == (8, 2, len(some), some)
    assert log.take(core, frozenset({7}))[0] == (10, 0, 0, b"")
    many = frozenset(range(2, 100))
    assert log.take(core, many)[0] == log.take(core, frozenset({2}))[0]
    log.entries.clear()
    assert log.take(core)[0] == (0, 0, 0, b"")


def test_records_side_by_side_are_not_copied(core: SimpleNamespace) -> None:
    log = Log()
    log.put_other(10)
    log.put()
    log.put()
    whole = memoryview(log.data)
    found = core.take_records(
        log.entries, FIRST, None, (32, 999), (whole, BASE, BASE, log.end, 0), QUEUE, bool
    )
    assert found[3].obj is log.data
    assert found[3] == whole[10:]


@pytest.mark.parametrize("sys_flag", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
def test_all_layouts_of_records_are_proven(
    core: SimpleNamespace, sys_flag: int, magic: int
) -> None:
    log = Log()
    log.put(sys_flag=sys_flag, magic=magic)
    taken, _ = log.take(core)
    assert taken == (1, 1, len(log.data), bytes(log.data))
    assert log.take(core, queue=(3, OTHER))[0] is None
    assert log.take(core, queue=(4, TOPIC))[0] is None


def test_nothing_of_a_read_with_something_odd(core: SimpleNamespace, log: Log) -> None:
    assert log.take(core, low=BASE + 1)[0] is None, "removed"
    assert log.take(core, high=log.end - 101)[0] is None, "behind the end"
    last = QUEUE_ENTRY_BYTES * 9
    for wrong in (HOLE, log.entries[:QUEUE_ENTRY_BYTES], QUEUE_ENTRY.pack(-1, 120, 0), bytes(20)):
        right, log.entries[last:] = log.entries[last:], wrong
        assert log.take(core)[0] is None
        assert log.take(core, queue=None)[0] is None
        assert log.take(core, count=9)[0] is None, "looked at, though it would not be taken"
        log.entries[last:] = right
    # What is not looked at may be anything.
    log.entries[last:] = HOLE
    assert log.take(core, count=8)[0] is not None


def test_any_wrong_bit_of_a_proven_field(core: SimpleNamespace) -> None:
    log = Log()
    log.put()
    log.put()
    fields = {*range(8), *range(12, 16), *range(20, 36), *range(84, 88)}
    topic = {*range(88 + 4, 88 + 4 + len(TOPIC))}
    size = len(log.data) // 2
    for at in fields | topic:
        for bit in range(8):
            log.data[size + at] ^= 1 << bit
            assert log.take(core)[0] is None
            assert log.take(core, count=1)[0] is not None
            assert log.take(core, queue=None)[0] is not None
            log.data[size + at] ^= 1 << bit


def test_what_may_wait_is_asked_for(core: SimpleNamespace) -> None:
    log = Log()
    for gap in (0, 0, 16 << 10, (16 << 10) + 1, 0):
        log.put_other(gap)
        log.put()
    size = len(log.data) - (32 << 10) - 1
    size //= 5
    second = BASE + 3 * size + (32 << 10) + 1
    groups = [(BASE, BASE + 3 * size + (16 << 10)), (second, log.end)]
    assert log.take(core, sure=log.end)[1] == groups
    assert log.take(core, sure=second)[1] == groups[:1]
    assert log.take(core, sure=second + size)[1] == [groups[0], (second, second + size)]
    assert log.take(core, sure=BASE)[1] == []
    assert log.take(core, sure=log.end, waits=second) == (None, groups)
    assert log.take(core, sure=log.end, waits=BASE) == (None, groups[:1])
    large = Log()
    for _ in range(5):
        large.put(body=bytes(200 << 10))
    assert len(large.take(core, sure=large.end)[1]) == 3


def test_bounds_outside_the_log_are_refused(core: SimpleNamespace, log: Log) -> None:
    for wrong in ({"low": BASE - 1}, {"high": log.end + 1}, {"high": -1}):
        with pytest.raises(ValueError, match="not in the bytes of the log"):
            log.take(core, **wrong)  # type: ignore[arg-type]
    assert log.take(core, high=BASE - 1)[0] is None
    assert log.take(core, low=log.end + 1)[0] is None


def test_an_error_of_who_is_asked_comes_through(core: SimpleNamespace, log: Log) -> None:
    def fail(start: int, stop: int) -> bool:
        raise OSError(f"{start} {stop}")

    bounds = (memoryview(log.data), BASE, BASE, log.end, log.end)
    with pytest.raises(OSError, match=re.escape(f"{BASE} {log.end - 100}")):
        core.take_records(log.entries, FIRST, None, (32, 9_999), bounds, QUEUE, fail)


# ------------------------------------------------------------------------------------ differential

NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, 1, -1, BASE, BASE + 90, FIRST])
)
SIZES = st.one_of(
    st.integers(-(1 << 31), (1 << 31) - 1), st.sampled_from([0, 1, -1, 88, 0x7FFFFFFF])
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Logs, most of them with some damage in the records or the entries."""
    log = Log()
    for _ in range(draw(st.integers(0, 12))):
        log.put_other(draw(st.sampled_from([0, 0, 0, 7, 300, 17_000])))
        log.put(
            draw(st.integers(-2, 2)),
            body=bytes(draw(st.sampled_from([0, 5, 200]))),
            sys_flag=draw(st.sampled_from([0, 0, 0, BORN_HOST_V6, STORE_HOST_V6, 0x30])),
            magic=draw(st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V1, MAGIC_V2])),
        )
    for data in (log.data, log.entries):
        for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
            if data:
                at = draw(st.integers(0, len(data) - 1))
                data[at] ^= 1 << draw(st.integers(0, 7))
    if log.count and draw(st.booleans()):
        at = draw(st.integers(0, log.count - 1)) * QUEUE_ENTRY_BYTES
        log.entries[at : at + QUEUE_ENTRY_BYTES] = draw(
            st.one_of(
                st.just(HOLE), st.binary(min_size=20, max_size=20),
                st.builds(QUEUE_ENTRY.pack, NUMBERS, SIZES, st.integers(-2, 2)),
            )
        )  # fmt: skip
    del log.data[len(log.data) - draw(st.sampled_from([0, 0, 0, 1, 90, 200])) :]
    log.entries += draw(st.binary(max_size=3))
    return log


def test_both_cores_take_the_same() -> None:
    taken = refused = 0

    @settings(max_examples=5 * settings().max_examples)
    @given(
        logs(), st.none() | st.frozensets(st.integers(-2, 40), max_size=20), st.integers(-1, 14),
        st.integers(-1, 3_000), st.sampled_from([0, 0, BASE + 300, BASE + 20_000, 1 << 40]),
        st.sampled_from([1 << 40, 1 << 40, BASE + 400]), st.sampled_from([QUEUE, QUEUE, None]),
    )  # fmt: skip
    def same(
        log: Log, codes: frozenset[int] | None, count: int, size: int, sure: int, waits: int,
        queue: tuple[int, bytes] | None,
    ) -> None:  # fmt: skip
        nonlocal taken, refused
        first, *others = [
            log.take(core, codes, count=count, size=size, sure=sure, waits=waits, queue=queue)
            for core in cores()
        ]
        assert others == [first] * len(others)
        if first[0] is None:
            refused += 1
        else:
            taken += first[0][1]

    same()
    # Or it would prove nothing.
    assert taken > settings().max_examples
    assert refused > settings().max_examples // 2


@given(
    data=st.binary(max_size=200), at=st.integers(-3, 210), offset=NUMBERS, place=NUMBERS, size=SIZES
)
def test_any_bytes_are_judged_alike(
    data: bytes, at: int, offset: int, place: int, size: int
) -> None:
    for core in cores():
        assert core.is_record(data, at, (offset, place, size), 3, TOPIC) is False


@given(
    at=st.integers(0, 40), more=st.integers(0, 3), less=st.integers(0, 120),
    changes=st.lists(st.tuples(st.integers(0, 110), st.integers(0, 255)), max_size=2),
)  # fmt: skip
def test_damaged_records_are_judged_alike(
    at: int, more: int, less: int, changes: list[tuple[int, int]]
) -> None:
    right = bytearray(record(BASE, FIRST))
    entry = (FIRST, BASE, len(right))
    for position, value in changes:
        right[position % len(right)] = value
    data = bytes(at) + right + bytes(more)
    data = data[: max(len(data) - less, 0)]
    first, *others = [core.is_record(data, at, entry, 3, TOPIC) for core in cores()]
    assert others == [first] * len(others)
    assert first or changes or less
    assert not (first and less > more)
