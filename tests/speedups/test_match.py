"""Programs of SQL92 filters: both cores say the same of any properties and of the records of any
queue entries, and stay within them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cometmq.filter.sql92 import SqlFilter
from cometmq.filter.sqltext import BadFilter
from cometmq.message.record import BORN_HOST_V6, MAGIC_V1, MAGIC_V2, STORE_HOST_V6, Record, pack
from cometmq.speedups.plain import match as plain
from cometmq.speedups.plain.match import MAX_DEPTH, Op
from cometmq.store.layout import HOLE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tests.conftest import cores

TOPIC = b"\x06orders"
QUEUE = (3, TOPIC)
#: Where the log begins, and the offset of the queue's first entry.
BASE = 5_000
FIRST = 70
HOSTS = {False: bytes(8), True: bytes(20)}


def program(core: SimpleNamespace, expression: str) -> Any:
    return core.Program(SqlFilter(expression).program.code)


# ------------------------------------------------------------------------------------- evaluation

NAMES = st.sampled_from(["a", "a", "b", "aa", "missing"])
WORDS = ["x", "x", "xx", "5", "ä", "-7", "2.5", "true", "1e3"]
CONSTANTS = st.sampled_from(
    [*(f"'{word}'" for word in WORDS), "''", "5", "-7", "2.5", "7L", "3000000000", "TRUE", "NULL",
     "9223372036854775807", "0.30000000000000004", "1e308"]
)  # fmt: skip
SHAPES = [
    "{0} = {2}", "{2} = {0}", "{0} IN ('x', '5', {2})", "{0} <> {2}", "{0} = {1}", "{0} > {1}",
    "{0} < {2}", "{0} >= {2}", "{0} <= {2}", "{2} > {0}", "{0} NOT IN ('x')", "{0}", "NOT {0}",
    "{0} STARTSWITH {2}", "{0} CONTAINS {2}", "{0} NOT ENDSWITH {2}", "{0} IS NULL",
    "{0} IS NOT NULL", "{0} BETWEEN -7 AND {2}", "-{0} < {2}", "-{0} = {1}", "{0} = {1} = {2}",
    "NOT {0} = {2}", "{2}", "{0} = -(-{2})", "{2} = {2}", "{2} < 5.5",
]  # fmt: skip
PLAIN = st.builds(
    lambda shape, name, other, constant: shape.format(name, other, constant),
    st.sampled_from(SHAPES),
    NAMES,
    NAMES,
    CONSTANTS,
)
EXPRESSIONS = st.recursive(
    PLAIN,
    lambda inner: st.builds(
        lambda shape, *sides: shape.format(*sides),
        st.sampled_from(
            ["({0}) AND ({1})", "({0}) OR ({1})", "NOT ({0})", "{0} AND {1}", "({0}) = ({1})"]
        ),
        inner,
        inner,
    ),
    max_leaves=5,
)
#: What is, and is nearly, a number.
NUMBERS = st.one_of(
    st.text("0123456789", min_size=1, max_size=22),
    st.text("0159+-.eEfdNaInfity \x00x", max_size=12),
    st.integers(-(1 << 64), 1 << 64).map(str),
    st.floats().map(repr),
    st.floats(-1e6, 1e6).map(lambda number: f"{number:.3f}"),
    st.sampled_from(["NaN", "-NaNf", "Infinity", "+Infinityd", "-0", "-0.0", "1e400", "5e-324"]),
).map(str.encode)
VALUES = st.one_of(
    st.sampled_from([word.encode() for word in WORDS] + [b"", b"a\x01x", b"\xff", b"TRUE"]),
    NUMBERS,
)
ENTRIES = st.builds(
    lambda name, value, end: name.encode() + value + end,
    NAMES,
    st.builds(lambda mark, value: mark + value, st.sampled_from([b"\x01"] * 9 + [b""]), VALUES),
    st.sampled_from([b"\x02"] * 9 + [b"\x02\x02"]),
)
#: Duplicates, empty values, names in values, what is no UTF-8, texts that do and do not end in 02.
PROPERTIES = st.builds(
    lambda entries, is_cut: b"".join(entries)[: -1 if is_cut else None],
    st.lists(ENTRIES, max_size=5),
    st.booleans(),
)


@pytest.fixture
def decided_slowly(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What plain Python was asked about, by the compiled core too."""
    asked: list[bytes] = []
    accepts = plain.Program.accepts

    def noted(self: plain.Program, properties: bytes) -> bool:
        asked.append(properties)
        return accepts(self, properties)

    monkeypatch.setattr(plain.Program, "accepts", noted)
    return asked


def test_both_cores_say_the_same_of_any_properties(decided_slowly: list[bytes]) -> None:
    evaluated = matched = slow = 0

    @settings(max_examples=2 * settings().max_examples)
    @given(EXPRESSIONS, st.lists(PROPERTIES, min_size=1, max_size=12))
    @example("a = 'x' AND b > 1", [b"a\x01x\x02b\x01x", b"b\x01x", b"a\x01x\x02b\x015"])
    @example("b > 1 OR a = 'x'", [b"a\x01x\x02b\x01x", b"a\x01x"])
    def same(expression: str, properties: list[bytes]) -> None:
        nonlocal evaluated, matched, slow
        try:
            definition, *others = [program(core, expression) for core in cores()]
        except BadFilter:
            return
        wanted = [definition.accepts(each) for each in properties]
        for other in others:
            decided_slowly.clear()
            assert [other.accepts(each) for each in properties] == wanted
            slow += len(decided_slowly)
        evaluated += len(wanted)
        matched += sum(wanted)

    same()
    # Or it would prove nothing.
    assert matched > evaluated // 20 > settings().max_examples // 10
    assert slow < evaluated // 10


def test_both_cores_read_the_same_numbers(decided_slowly: list[bytes]) -> None:
    texts = ["a = 5", "a < 7", "a >= -3000000000", "a > 1.5", "a = 0.0", "a <= -2.5e7", "a < b"]
    programs = [[program(core, text) for core in cores()] for text in texts]
    evaluated = matched = slow = 0

    @settings(max_examples=3 * settings().max_examples)
    @given(NUMBERS, NUMBERS)
    def same(one: bytes, other: bytes) -> None:
        nonlocal evaluated, matched, slow
        properties = b"a\x01%b\x02b\x01%b" % (one, other)
        for definition, *others in programs:
            wanted = definition.accepts(properties)
            decided_slowly.clear()
            assert [each.accepts(properties) for each in others] == [wanted] * len(others)
            slow += len(decided_slowly)
            evaluated += 1
            matched += wanted

    same()
    assert matched > evaluated // 20
    assert slow < evaluated // 10


def test_long_numbers_are_left_to_plain_python(
    core: SimpleNamespace, decided_slowly: list[bytes]
) -> None:
    for text, is_more in ((b"0" * 100 + b"2", True), (b"1." + b"4" * 90, False), (b"1" * 99, True)):
        assert program(core, "a > 1.5").accepts(b"a\x01" + text) is is_more
    assert len(decided_slowly) == 3


def test_a_piece_is_found_wherever_it_stands(core: SimpleNamespace) -> None:
    chance = random.Random(4)
    for _ in range(600):
        piece = "".join(chance.choices("aab", k=chance.randrange(1, 9)))
        text = "".join(chance.choices("aab", k=chance.randrange(1, 60)))
        found = program(core, f"a CONTAINS '{piece}'").accepts(b"a\x01" + text.encode())
        assert found is (piece in text), (piece, text)


def test_names_and_texts_of_any_number(core: SimpleNamespace) -> None:
    numbers = range(0, 400, 3)
    names = program(core, " OR ".join(f"name{number} = {number}" for number in numbers))
    texts = program(core, f"a IN ({', '.join(repr(str(number)) for number in numbers)})")
    for number in range(402):
        is_one = number in numbers
        assert names.accepts(b"name%d\x01%d" % (number, number)) is is_one
        assert texts.accepts(b"a\x01%d" % number) is is_one


def test_any_buffer_is_taken(core: SimpleNamespace) -> None:
    wanted = program(core, "a = 1")
    for kind in (bytes, bytearray, memoryview):
        assert wanted.accepts(kind(b"a\x011")) is True
    assert wanted.accepts(b"") is False


@pytest.mark.parametrize(
    "code",
    [
        (), ((Op.EQUAL, None),), ((Op.PUSH, True), (Op.PUSH, True)), ((Op.NOT, None),),
        ((Op.PUSH, True), (Op.AND, None)), ((Op.PUSH, 1 << 63),), ((Op.PUSH, ("a",)),),
        ((Op.PROPERTY, 0),), ((Op.PROPERTY, b"a"), (Op.ONE_OF, (b"b", b"a"))), ((19, None),),
        ((Op.PROPERTY, b"a"), (Op.ONE_OF, (b"a", b"a"))), ((Op.PROPERTY, b"a"), (Op.CONTAINS, "a")),
        ((Op.PUSH, True), (Op.AND_THEN, 1)), ((Op.PUSH, True), (Op.AND_THEN, 3)), ((-1, None),),
        ((Op.PUSH, True), (Op.AND_THEN, 3), (Op.PUSH, True)), ((Op.PUSH, True), (Op.NOT, 1)),
        ((Op.PUSH, True), (Op.AND_THEN, 3), (Op.PUSH, True), (Op.AND, None)),
        tuple([(Op.PUSH, True)] * (MAX_DEPTH + 1) + [(Op.AND, None)] * MAX_DEPTH),
    ],
)  # fmt: skip
def test_steps_that_cannot_be_run_are_refused(core: SimpleNamespace, code: Any) -> None:
    with pytest.raises(ValueError, match="program"):
        core.Program(code)


def test_as_many_values_as_the_stack_holds(core: SimpleNamespace) -> None:
    steps = [(Op.PUSH, True)] * MAX_DEPTH + [(Op.AND, None)] * (MAX_DEPTH - 1)
    assert core.Program(tuple(steps)).accepts(b"")


TEXTS = st.sampled_from([b"", b"a", b"5", b"true", b"2.5"])
OPERANDS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 8), st.floats(), st.just(1 << 62), TEXTS,
)  # fmt: skip
VALUE = st.tuples(st.just(Op.PUSH), OPERANDS) | st.tuples(st.just(Op.PROPERTY), TEXTS)
STEP = st.one_of(
    VALUE,
    st.tuples(st.sampled_from(Op), st.none()),
    st.tuples(st.sampled_from([Op.EQUAL, Op.LESS, Op.GREATER_EQUAL, Op.AND, Op.OR]), st.none()),
    st.tuples(st.sampled_from([Op.NOT, Op.AS_TRUTH, Op.IS_NULL, Op.NEGATE]), st.none()),
    st.tuples(st.sampled_from([Op.AND_THEN, Op.OR_ELSE]), st.integers(3, 6)),
    st.tuples(st.sampled_from([Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH]), TEXTS),
    st.tuples(st.just(Op.ONE_OF), st.just((b"a", b"5", b"xx"))),
    st.tuples(st.integers(-1, 19), OPERANDS),
)


def test_any_steps_are_run_or_refused_alike() -> None:
    """What no expression is compiled to, too."""
    refused = ran = 0

    @settings(max_examples=5 * settings().max_examples)
    @given(st.lists(VALUE, max_size=2), st.lists(STEP, max_size=4), PROPERTIES)
    def same(
        values: list[tuple[int, Any]], steps: list[tuple[int, Any]], properties: bytes
    ) -> None:
        nonlocal refused, ran
        found: list[bool | str] = []
        code = values + steps
        for core in cores():
            try:
                found.append(core.Program(tuple(code)).accepts(properties))
            except (ValueError, AssertionError) as error:
                found.append(str(error))
        assert found[1:] == found[:1] * (len(found) - 1)
        refused += isinstance(found[0], str)
        ran += not isinstance(found[0], str)

    same()
    assert refused > ran > settings().max_examples // 10


def test_a_program_is_made_once(core: SimpleNamespace) -> None:
    if core.name == "plain":
        return
    made = program(core, "a = 1")
    with pytest.raises(ValueError, match="once"):
        made.__init__(made.code)
    assert core.Program.__new__(core.Program).accepts(b"a\x011") is False


# ---------------------------------------------------------------------------------------- records


def record(
    place: int, offset: int, properties: bytes, *, body: bytes = b"body", sys_flag: int = 0,
    magic: int = MAGIC_V1,
) -> bytes:  # fmt: skip
    """A record of queue 3 of the topic "orders"."""
    born, stored = HOSTS[bool(sys_flag & BORN_HOST_V6)], HOSTS[bool(sys_flag & STORE_HOST_V6)]
    raw = pack(
        Record(0, 0, 3, 0, offset, place, 0, 1, born, 2, stored, 0, 0, body, "orders", properties)
    )
    if magic == MAGIC_V1:
        return raw
    at = len(raw) - len(properties) - 2 - len(TOPIC)
    longer = (len(raw) + 1).to_bytes(4, "big") + MAGIC_V2.to_bytes(4, "big")
    return longer + raw[8:at] + b"\0" + raw[at:]


@dataclass
class Log:
    """A log and the entries of one of its queues; each message has its number as "n"."""

    data: bytearray = field(default_factory=bytearray)
    entries: bytearray = field(default_factory=bytearray)
    count: int = 0

    def put(self, more: bytes = b"", **changes: Any) -> None:
        """Add a record with its entry."""
        place = BASE + len(self.data)
        packed = record(place, FIRST + self.count, b"n\x01%d\x02%b" % (self.count, more), **changes)
        self.entries += QUEUE_ENTRY.pack(place, len(packed), 0)
        self.data += packed
        self.count += 1

    def put_other(self, size: int) -> None:
        """Add bytes that are of others."""
        self.data += bytes(size)

    @property
    def end(self) -> int:
        """Where the log ends."""
        return BASE + len(self.data)

    def entry(self, number: int) -> bytes:
        """One of the entries."""
        return bytes(self.entries[number * QUEUE_ENTRY_BYTES :][:QUEUE_ENTRY_BYTES])

    def size(self, number: int) -> int:
        """The size of a record."""
        return int(QUEUE_ENTRY.unpack(self.entry(number))[1])

    def match(
        self, core: SimpleNamespace, expression: str = "n >= 0", *, count: int = 32,
        size: int = 1 << 20, budget: tuple[int, int] = (800, 1 << 20), low: int = BASE,
        high: int | None = None, sure: int = 0, queue: tuple[int, bytes] | None = QUEUE,
        waits: int = 1 << 40,
    ) -> tuple[int, int, list[int], list[tuple[int, int]]]:  # fmt: skip
        """How many a core looks at, the bytes of their properties, the numbers of those that match
        and what it asks for; from `waits` on bytes are not in memory."""
        asked: list[tuple[int, int]] = []

        def has_at_once(start: int, stop: int) -> bool:
            asked.append((start, stop))
            return stop <= waits

        bounds = (memoryview(self.data), BASE, low, self.end if high is None else high, sure)
        looked_at, spent, found = core.match_records(
            program(core, expression), self.entries, FIRST, (count, size), budget, bounds, queue,
            has_at_once,
        )  # fmt: skip
        numbers, whole = [], range(0, len(self.entries), QUEUE_ENTRY_BYTES)
        at = 0
        for number, start in enumerate(whole):
            if found[at : at + 20] == self.entries[start : start + 20] and at < len(found):
                numbers.append(number)
                at += QUEUE_ENTRY_BYTES
        assert at == len(found)
        return looked_at, spent, numbers, asked


@pytest.fixture
def log() -> Log:
    made = Log()
    for number in range(10):
        made.put(body=bytes([number]) * number)
        if number % 2:
            made.put_other(100)
    return made


def test_those_that_match_up_to_what_an_answer_holds(core: SimpleNamespace, log: Log) -> None:
    assert log.match(core)[:3] == (10, 40, list(range(10)))
    assert log.match(core, "n > 3 AND n < 8")[:3] == (10, 40, [4, 5, 6, 7])
    assert log.match(core, "n = 5")[:3] == (10, 40, [5])
    assert log.match(core, "n < 0")[:3] == (10, 40, [])
    assert log.match(core, "n > 3", count=2)[:3] == (6, 24, [4, 5]), "it ends behind the last"
    two = log.size(4) + log.size(5)
    assert log.match(core, "n > 3", size=two)[:3] == (6, 24, [4, 5])
    assert log.match(core, "n > 3", size=two - 1)[:3] == (5, 20, [4])
    assert log.match(core, "n > 3", size=0, count=0)[:3] == (5, 20, [4]), "one is always given"
    log.entries.clear()
    assert log.match(core)[:3] == (0, 0, [])


def test_it_looks_at_as_much_as_it_may(core: SimpleNamespace, log: Log) -> None:
    assert log.match(core, "n > 3", budget=(6, 999))[:3] == (6, 24, [4, 5])
    assert log.match(core, "n > 3", budget=(99, 21))[:3] == (6, 24, [4, 5])
    assert log.match(core, "n > 3", budget=(99, 20))[:3] == (5, 20, [4])
    assert log.match(core, "n > 3", budget=(0, 0))[:3] == (1, 4, [])


@pytest.mark.parametrize("sys_flag", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("queue", [QUEUE, None])
def test_properties_of_all_layouts(
    core: SimpleNamespace, sys_flag: int, magic: int, queue: tuple[int, bytes] | None
) -> None:
    log = Log()
    log.put(b"a\x01x", sys_flag=sys_flag, magic=magic, body=b"\x02a\x01y")
    assert log.match(core, "a = 'x'", queue=queue)[:3] == (1, 7, [0])
    assert log.match(core, "a = 'x'", queue=(4, TOPIC))[:3] == (0, 0, [])
    assert log.match(core, "a = 'x'", queue=(3, b"\x06others"))[:3] == (0, 0, [])


def test_it_stops_before_what_is_odd(core: SimpleNamespace, log: Log) -> None:
    assert log.match(core, low=BASE + 1)[:3] == (0, 0, []), "removed"
    assert log.match(core, high=log.end - 101)[0] == 9, "behind the end"
    at = QUEUE_ENTRY_BYTES * 6
    for wrong in (HOLE, log.entry(0), QUEUE_ENTRY.pack(-1, 120, 0), bytes(20), log.entry(7)):
        right, log.entries[at : at + 20] = log.entry(6), wrong
        assert log.match(core)[:3] == (6, 24, list(range(6)))
        log.entries[at : at + 20] = right
    assert log.match(core)[0] == 10


def test_any_wrong_bit_of_a_proven_field(core: SimpleNamespace) -> None:
    log = Log()
    log.put()
    log.put()
    fields = {*range(8), *range(12, 16), *range(20, 36), *range(84, 88)}
    topic = {*range(88 + 4, 88 + 4 + len(TOPIC))}
    size = log.size(0)
    for at in fields | topic:
        for bit in range(8):
            log.data[size + at] ^= 1 << bit
            assert log.match(core)[:3] == (1, 4, [0])
            log.data[size + at] ^= 1 << bit


def test_what_may_wait_is_asked_for(core: SimpleNamespace) -> None:
    log = Log()
    for gap in (0, 0, 16 << 10, (16 << 10) + 1, 0):
        log.put_other(gap)
        log.put()
    size = log.size(0)
    second = BASE + 3 * size + (32 << 10) + 1
    groups = [(BASE, BASE + 3 * size + (16 << 10)), (second, log.end)]
    assert log.match(core, sure=log.end)[3] == groups
    assert log.match(core, sure=second)[3] == groups[:1]
    assert log.match(core, sure=second + size)[3] == [groups[0], (second, second + size)]
    assert log.match(core, sure=BASE)[3] == []
    assert log.match(core, sure=log.end, waits=second)[2:] == ([0, 1, 2], groups)
    assert log.match(core, sure=log.end, waits=BASE)[2:] == ([], groups[:1])
    large = Log()
    for _ in range(5):
        large.put(body=bytes(200 << 10))
    assert len(large.match(core, sure=large.end)[3]) == 3


def test_bounds_outside_the_log_are_refused(core: SimpleNamespace, log: Log) -> None:
    for wrong in ({"low": BASE - 1}, {"high": log.end + 1}, {"high": -1}):
        with pytest.raises(ValueError, match="not in the bytes of the log"):
            log.match(core, **wrong)  # type: ignore[arg-type]
    assert log.match(core, high=BASE - 1)[0] == 0
    assert log.match(core, low=log.end + 1)[0] == 0


ODD_NUMBERS = st.one_of(
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
            draw(PROPERTIES),
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
                st.builds(QUEUE_ENTRY.pack, ODD_NUMBERS, SIZES, st.just(0)),
            )
        )  # fmt: skip
    del log.data[len(log.data) - draw(st.sampled_from([0, 0, 0, 1, 90, 200])) :]
    return log


def test_both_cores_match_the_same_records(decided_slowly: list[bytes]) -> None:
    looked_at = matched = stopped = slow = 0

    @settings(max_examples=2 * settings().max_examples)
    @given(
        logs(), PLAIN, st.integers(-1, 14), st.integers(-1, 3_000), st.integers(0, 12),
        st.sampled_from([0, 0, BASE + 300, BASE + 20_000, 1 << 40]),
        st.sampled_from([1 << 40, 1 << 40, BASE + 400]), st.sampled_from([QUEUE, QUEUE, None]),
    )  # fmt: skip
    def same(
        log: Log, expression: str, count: int, size: int, budget: int, sure: int, waits: int,
        queue: tuple[int, bytes] | None,
    ) -> None:  # fmt: skip
        nonlocal looked_at, matched, stopped, slow
        found = []
        for core in cores():
            decided_slowly.clear()
            try:
                found.append(log.match(
                    core, expression, count=count, size=size, budget=(budget, 40 * budget),
                    sure=sure, waits=waits, queue=queue,
                ))  # fmt: skip
            except BadFilter:
                return
            slow += len(decided_slowly) if core.name != "plain" else 0
        assert found[1:] == found[:1] * (len(found) - 1)
        looked_at += found[0][0]
        matched += len(found[0][2])
        stopped += found[0][0] < log.count

    same()
    # Or it would prove nothing.
    assert matched > looked_at // 20 > 0
    assert looked_at > settings().max_examples
    assert stopped > settings().max_examples // 2
    assert slow < looked_at // 3
