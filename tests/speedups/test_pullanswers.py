"""Plain pulls and the frames of their answers: both cores read the same of any stream, give the
same of any pulls, queues and logs, count alike, and ask for the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.filter.sql92 import SqlFilter
from cometmq.protocol.frame import lengths
from cometmq.protocol.headers import PullMessage
from cometmq.protocol.registry import FAST_DECODERS
from cometmq.speedups.plain.pullanswers import AHEAD_ENTRIES, AT_ONCE, PLANS_MAX
from cometmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tests.broker.serving import pull_fields
from tests.conftest import cores
from tests.speedups.test_pulls import QUEUE, TOPIC, record

#: What each record takes, and so many lie in a log file.
SIZE = len(record(0, 0))
FILE_RECORDS = 40
BASE = 10 * SIZE * FILE_RECORDS
PIECES = ((b"{max", b"min", b"next", b"broker", b"opaque", b"}"), (b"<", b"", b"", b"", b"", b">"))
FIELDS = ("g", "t", 1, 5, 32, 4, 0, 0, 0, "*", "TAG")
EVERYTHING = SimpleNamespace(codes=None, program=None)


def header_of(changes: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """The header of a pull from offset 5 on; a field of None is left out."""
    ext = {name: value for name, value in (pull_fields(5) | fields).items() if value is not None}
    head = {"code": 11, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7}
    head = {name: value for name, value in (head | (changes or {})).items() if value is not None}
    return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()


def framed(header: bytes, body: bytes = b"") -> bytes:
    return lengths(len(header), len(body)) + header + body


@dataclass
class World:
    """A queue whose records follow each other in a log of two files, and who answers its pulls.

    The property k of a record is v, of every third w; so many have tag code 1, others 0.
    """

    core: SimpleNamespace
    count: int = 60
    first: int = 0
    tail_offset: int = 0
    opened_at: int = 0
    proof: Any = QUEUE
    most: tuple[int, int] = (32, 1 << 18)
    hot_bytes: int = 1 << 40
    budget: tuple[int, int] = (100, 1 << 20)
    wanted: Any = field(default_factory=lambda: EVERYTHING)
    #: Up to where in the log bytes take a wait.
    waits_to: int = 0
    asked: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        core = self.core
        self.log = bytearray()
        self.entries = bytearray()
        for number in range(self.count):
            place = BASE + number * SIZE
            text = b"w" if number % 3 == 2 else b"v"
            self.log += record(place, number)[:-2] + text + b"\2"
            self.entries += QUEUE_ENTRY.pack(place, SIZE, int(number % 4 == 1))
        self.queue = core.QueueState()
        self.queue.max_offset = self.count
        self.queue.min_offset = self.first
        self.queue.tail_offset = self.tail_offset
        self.queue.tail = self.entries[self.tail_offset * QUEUE_ENTRY_BYTES :]
        self.queue.queue_id, self.queue.topic_tail = QUEUE
        self.totals = core.PullTotals()
        self.counters: dict[tuple[str, str], Any] = {}
        self.positions: dict[Any, Any] = {}
        self.reads = SimpleNamespace(
            log=SimpleNamespace(
                written=BASE + len(self.log), opened_at=BASE + self.opened_at * SIZE, segments=self
            ),
            hot_bytes=self.hot_bytes,
            sound_from=0,
            mapped=self.mapped,
        )
        self.answers = core.PullAnswers(
            self.reads, 1 << 40, PIECES, self.totals, self.plan_of, self.entries_of,
            self.counter_of, lambda *told: self.asked.append(("commit", *told)),
        )  # fmt: skip

    def plan_of(self, fields: Any) -> Any:
        self.asked.append(("plan", fields))
        if fields[1] != "t":
            return None
        position = self.positions.setdefault(fields[:3], self.core.PullPosition())
        return self.core.PullPlan(
            self.queue, fields, self.most, self.wanted, self.budget, self.proof, (5, 6), position
        )

    def entries_of(self, queue: Any, offset: int, count: int) -> bytes:
        assert queue is self.queue
        self.asked.append(("entries", offset, count))
        return bytes(self.entries[offset * QUEUE_ENTRY_BYTES :][: count * QUEUE_ENTRY_BYTES])

    def counter_of(self, group: str, topic: str) -> Any:
        return self.counters.setdefault((group, topic), self.core.PullCounter())

    def mapped(self, file: Any, start: int, stop: int) -> Any:
        self.asked.append(("mapped", file.base, start, stop))
        return file.view if start >= self.waits_to else None

    def find(self, place: int) -> Any:
        """The log file of a place."""
        number = (place - BASE) // (SIZE * FILE_RECORDS)
        if place < BASE or number * FILE_RECORDS >= self.count:
            return None
        base = BASE + number * SIZE * FILE_RECORDS
        end = base + SIZE * FILE_RECORDS
        data = self.log[base - BASE : end - BASE]
        data += bytes(end - base - len(data))
        return SimpleNamespace(base=base, end=end, view=memoryview(data))

    def take(self, data: bytes, *, suggests: int = 0, may_match: bool = True) -> Any:
        """What becomes of frames: answers, where that ends, how many are odd, and what may wait."""
        frames, at, odd, waiting = self.answers.take(data, 0, suggests, may_match)
        return frames, at, odd, [each[1:] for each in waiting]

    @property
    def seen(self) -> Any:
        """All that can be seen of what happened."""
        counted = [
            (key, each.count, each.size_bytes, each.times, each.step)
            for key, each in self.counters.items()
        ]
        totals = self.totals
        positions = [(key, each.offset) for key, each in self.positions.items()]
        return totals.found, totals.missed, totals.transferred, counted, self.asked, positions


def pull(offset: int, **fields: Any) -> bytes:
    """The frame of a pull."""
    return framed(header_of(queueOffset=str(offset), **fields))


def answer(world: World, offset: int, numbers: list[int], onward: int, suggested: int = 0) -> bytes:
    """The answer to a pull that finds some records."""
    body = b"".join(bytes(world.log[n * SIZE : (n + 1) * SIZE]) for n in numbers)
    values = world.count, world.first, onward, suggested, 7
    pieces = PIECES[0 if numbers else 1]
    head = b"".join(piece + b"%d" % n for piece, n in zip(pieces, values, strict=False))
    return framed(head + pieces[-1], body)


def filtered(text: str = "k = 'w'") -> Any:
    """What a pull wants that has a filter, for a core."""
    return lambda core: SimpleNamespace(
        codes=None, program=core.Program(SqlFilter(text).program.code)
    )


def test_pulls_are_answered_with_what_lies_there(core: SimpleNamespace) -> None:
    world = World(core)
    frame = pull(3)
    assert world.take(frame * 2) == (
        answer(world, 3, list(range(3, 35)), 35) * 2, len(frame) * 2, 0, []
    )  # fmt: skip
    assert world.seen[:3] == (2, 0, 64)
    assert world.seen[3] == [(("g", "t"), 64, 64 * SIZE, 2, 0)]
    assert [each[0] for each in world.asked] == ["plan"], "one plan, no wait"
    world.totals.step = 9
    assert world.take(pull(3), suggests=1)[0] == answer(world, 3, list(range(3, 35)), 35, 5)
    assert world.take(pull(3), suggests=2)[0] == answer(world, 3, list(range(3, 35)), 35, 6)
    assert world.counters["g", "t"].step == 9
    assert world.take(pull(3) + pull(4)[:-1])[1:] == (len(frame), 0, [])


def test_fewer_where_there_are_fewer(core: SimpleNamespace) -> None:
    world = World(core, most=(32, 4 * SIZE))
    assert world.take(pull(3))[0] == answer(world, 3, [3, 4, 5, 6], 7)
    world = World(core, most=(0, 0))
    assert world.take(pull(3))[0] == answer(world, 3, [3], 4)
    world = World(core)
    assert world.take(pull(58))[0] == answer(world, 58, [58, 59], 60)
    assert world.take(pull(20))[2] == 1, "the file ends before"


def test_by_tags(core: SimpleNamespace) -> None:
    world = World(core, wanted=SimpleNamespace(codes=frozenset({1}), program=None), count=40)
    assert world.take(pull(0))[0] == answer(world, 0, [*range(1, 40, 4)], 40)
    world = World(core, wanted=SimpleNamespace(codes=frozenset({2}), program=None), count=40)
    assert world.take(pull(0))[1:3] == (0, 1), "nothing matches: it may have to be held"


def test_by_a_filter(core: SimpleNamespace) -> None:
    world = World(core, wanted=filtered()(core), count=40, most=(5, 1 << 18))
    frame = pull(0)
    assert world.take(frame * 2) == (answer(world, 0, [2, 5, 8, 11, 14], 15), len(frame), 0, [])
    assert world.take(frame, may_match=False) == (b"", 0, 1, [])
    assert world.take(pull(15, maxMsgNums="1"))[0] == answer(world, 15, [17, 20, 23, 26, 29], 30)
    world = World(core, wanted=filtered("k = 'x'")(core), count=60, budget=(10, 1 << 20))
    assert world.take(pull(0))[0] == answer(world, 0, [], 10)
    assert world.seen[:3] == (0, 1, 0)
    world = World(core, wanted=filtered()(core), most=(32, 1 << 18))
    found = [*range(20 + 20 % 3 - 2, 60)]
    assert world.take(pull(20))[0] == answer(
        world, 20, [n for n in found if n % 3 == 2 and n >= 20], 60
    ), "through two files"


def test_who_is_at_the_end_may_wait(core: SimpleNamespace) -> None:
    world = World(core)
    waits = {"sysFlag": "7", "suspendTimeoutMillis": "900", "commitOffset": "12"}
    frame = pull(60, **waits)
    assert world.take(frame) == (b"", len(frame), 0, [(60, 7, 900)])
    assert world.asked[-1] == ("commit", "g", "t", 1, 12)
    for odd in (
        pull(61, **waits),
        pull(60, **waits | {"sysFlag": "4"}),
        pull(60, **waits | {"suspendTimeoutMillis": "0"}),
    ):
        assert world.take(odd) == (b"", 0, 1, [])
    assert sum(each[0] == "commit" for each in world.asked) == 1
    world = World(core, count=10, first=4)
    assert world.take(pull(3, **waits)) == (b"", 0, 1, [])


def test_who_waited_is_served(core: SimpleNamespace) -> None:
    world = World(core)
    frames = pull(60, sysFlag="6", suspendTimeoutMillis="900")
    ((plan, *_),) = world.answers.take(frames, 0, 0, False)[3]
    held = [
        SimpleNamespace(plan=plan, offset=offset, opaque=7) for offset in (58, 60, 59)
    ]  # fmt: skip
    assert world.answers.serve(held, 0) == [
        answer(world, 58, [58, 59], 60), None, answer(world, 59, [59], 60)
    ]  # fmt: skip
    world.answers.forget()
    assert world.answers.serve(held, 0) == [None] * 3
    world = World(core, wanted=filtered()(core))
    ((plan, *_),) = world.answers.take(frames, 0, 0, True)[3]
    assert world.answers.serve([SimpleNamespace(plan=plan, offset=2, opaque=7)], 0) == [None]


def test_the_position_of_the_group_moves(core: SimpleNamespace) -> None:
    world = World(core)
    assert core.PullPosition().offset == -1

    def moved(frames: bytes) -> int:
        world.take(frames)
        offset: int = world.positions["g", "t", 1].offset
        return offset

    assert moved(pull(3)) == 35
    assert moved(pull(58)) == 60
    assert moved(pull(9_999)) == 60, "an odd pull moves nothing"
    waits = {"sysFlag": "6", "suspendTimeoutMillis": "900"}
    assert moved(pull(0)) == 32
    assert moved(pull(60, **waits)) == 60, "who waits has all before"
    world.take(pull(0, queueId="2"))
    assert world.positions["g", "t", 2].offset == 32
    assert moved(b"") == 60
    ((plan, *_),) = world.answers.take(pull(60, **waits), 0, 0, False)[3]
    world.answers.serve([SimpleNamespace(plan=plan, offset=5, opaque=7)], 0)
    assert plan.position.offset == 37
    world = World(core, wanted=filtered("k = 'x'")(core), budget=(10, 1 << 20))
    assert moved(pull(0)) == 10, "nothing matched up to there"


def test_plans_are_kept_until_something_changes(core: SimpleNamespace) -> None:
    world = World(core)

    def plans() -> int:
        return sum(each[0] == "plan" for each in world.asked)

    for number in range(2):
        for fields in (
            {}, {"consumerGroup": "h"}, {"queueId": "2"}, {"maxMsgNums": "3"}, {"sysFlag": "0"},
            {"subVersion": "8"}, {"subscription": "x"}, {"subscription": None},
            {"expressionType": None}, {"subscription": "", "expressionType": "*TAG"},
        ):  # fmt: skip
            assert world.take(pull(number, **fields))[2] == 0
        assert plans() == 10
    world.answers.forget()
    world.take(pull(0))
    assert plans() == 11
    for _ in range(2):
        assert world.take(pull(0, topic="other")) == (b"", 0, 1, [])
    assert plans() == 13, "of what is odd nothing is kept"
    for number in range(PLANS_MAX):
        world.take(pull(0, subscription=str(number)))
    world.take(pull(0))
    assert plans() == 14 + PLANS_MAX


def test_others_get_their_turn(core: SimpleNamespace) -> None:
    world = World(core)
    frame = pull(50)
    assert world.take(frame * (AT_ONCE + 1))[1:] == (len(frame) * AT_ONCE, 0, [])
    odd = framed(header_of({"code": 12}))
    assert world.take(frame + odd * 2)[1:3] == (len(frame), 2)


def test_entries_of_files_are_read_ahead_and_proven(core: SimpleNamespace) -> None:
    world = World(core, count=40, tail_offset=36, most=(8, 1 << 18))
    for offset in (0, 8, 16, 24):
        found = list(range(offset, offset + 8))
        assert world.take(pull(offset))[0] == answer(world, offset, found, offset + 8)
    reads = [each for each in world.asked if each[0] == "entries"]
    assert reads == [("entries", 0, AHEAD_ENTRIES)]
    # What came since is not in what was read ahead.
    world.queue.max_offset = world.count = 44
    for number in range(40, 44):
        world.log += record(BASE + number * SIZE, number)
        world.entries += QUEUE_ENTRY.pack(BASE + number * SIZE, SIZE, 0)
    world.reads.log.written += 4 * SIZE
    assert world.take(pull(34))[2] == 1, "the next log file begins there"
    world = World(core, count=40, tail_offset=36)
    world.entries[20 * 5 + 7] ^= 1
    assert world.take(pull(5)) == (b"", 0, 1, []), "a wrong entry"
    assert world.take(pull(0)) == (b"", 0, 1, [])
    world = World(core, count=40, tail_offset=36, proof=None)
    for _ in range(2):
        assert world.take(pull(0))[2] == 0
    assert sum(each[0] == "entries" for each in world.asked) == 2, "without a proof each time"


def test_what_is_not_at_hand_is_odd(core: SimpleNamespace) -> None:
    world = World(core, opened_at=30, count=40)
    assert world.take(pull(0))[2] == 0
    assert [each for each in world.asked if each[0] == "mapped"] == [
        ("mapped", BASE, BASE, BASE + 30 * SIZE)
    ]
    world.waits_to = BASE + SIZE
    assert world.take(pull(0)) == (b"", 0, 1, [])
    assert world.take(pull(1))[2] == 0
    world = World(core, hot_bytes=10 * SIZE, count=40)
    assert world.take(pull(29)) == (b"", 0, 1, [])
    assert world.take(pull(30))[2] == 0
    world = World(core, count=40)
    world.entries[:] = world.queue.tail[:] = QUEUE_ENTRY.pack(-1 << 63, SIZE, 0) * 40
    assert world.take(pull(0)) == (b"", 0, 1, [])


def test_what_cannot_be_right_is_refused(core: SimpleNamespace) -> None:
    world = World(core)
    for at in (-1, 1_000):
        with pytest.raises(ValueError, match="outside"):
            world.answers.take(b"", at, 0, True)


# ------------------------------------------------------------------------------------ differential

WANTED = [lambda core: EVERYTHING, filtered(), filtered("k = 'v' OR k IS NULL")] + [
    lambda core, codes=codes: SimpleNamespace(codes=frozenset(codes), program=None)
    for codes in ((0,), (1,), tuple(range(1, 40)))
]
WORLDS = st.fixed_dictionaries(
    {
        "count": st.integers(0, 80),
        "first": st.integers(0, 5),
        "tail_offset": st.integers(0, 90),
        "opened_at": st.integers(0, 80),
        "proof": st.sampled_from([QUEUE, QUEUE, QUEUE, None, (4, TOPIC)]),
        "most": st.tuples(st.integers(0, 40), st.integers(0, 30 * SIZE)),
        "hot_bytes": st.sampled_from([1 << 40, 1 << 40, 30 * SIZE]),
        "budget": st.tuples(st.integers(1, 60), st.integers(1, 400)),
        "waits_to": st.sampled_from([0, 0, BASE + 20 * SIZE]),
    }
)
PULLS = st.lists(
    st.tuples(st.integers(0, 82), st.sampled_from(["0", "4", "6", "7"]), st.integers(0, 1)),
    min_size=1,
    max_size=6,
)


def test_both_cores_do_the_same() -> None:
    fast = odd = 0

    @settings(max_examples=4 * settings().max_examples)
    @given(
        WORLDS,
        st.sampled_from(WANTED),
        st.lists(PULLS, min_size=1, max_size=4),
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 9_999), st.integers(0, 255)), max_size=3
        ),
        st.binary(max_size=20),
    )
    def same(made: Any, wanted: Any, reads: Any, edits: Any, rest: bytes) -> None:
        nonlocal fast, odd
        made["first"] = min(made["first"], made["count"])
        made["tail_offset"] = min(made["tail_offset"], made["count"])
        outcomes = []
        for core in cores():
            world = World(core, wanted=wanted(core), **made)
            for is_log, at, value in edits:
                target = world.log if is_log else world.entries
                if target:
                    target[at % len(target)] = value
            world.queue.tail = world.entries[world.tail_offset * QUEUE_ENTRY_BYTES :]
            seen = []
            for number, pulls in enumerate(reads):
                data = b"".join(
                    pull(offset, sysFlag=flag, suspendTimeoutMillis=str(wait))
                    for offset, flag, wait in pulls
                )
                seen.append(world.take(data + rest, suggests=number % 3))
            outcomes.append((seen, world.seen))
        assert outcomes[1:] == outcomes[:1] * (len(outcomes) - 1)
        fast += sum(bool(each[0]) for each in outcomes[0][0])
        odd += sum(each[2] for each in outcomes[0][0])

    same()
    # Or it would prove nothing.
    assert fast > settings().max_examples
    assert odd > settings().max_examples


def test_a_pull_is_read_from_where_it_begins(core: SimpleNamespace) -> None:
    frame = framed(header_of())
    assert core.read_pull(frame, 0) == (FIELDS, 7, len(frame))
    two = b"??" + frame + frame
    assert core.read_pull(two, 2) == (FIELDS, 7, 2 + len(frame))
    assert core.read_pull(two, 2 + len(frame)) == (FIELDS, 7, len(two))
    assert core.read_pull(two, len(two)) == 0
    assert PullMessage(*core.read_pull(frame, 0)[0]) == FAST_DECODERS[b"11"](header_of()).header
    for wrong in (-1, len(two) + 1):
        with pytest.raises(ValueError, match="outside"):
            core.read_pull(two, wrong)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"code": 361}, {}),
        ({"version": 453, "serializeTypeCurrentRPC": "JSON", "remark": "", "flag": None}, {}),
        ({}, {"bname": "b", "requestSource": "0", "other": ""}),
        ({}, {"queueOffset": str((1 << 63) - 1), "queueId": str((1 << 31) - 1)}),
        ({"opaque": 0}, {"subscription": None, "expressionType": None}),
        ({}, {"subscription": "", "expressionType": ""}),
    ],
)
def test_what_clients_send_besides(
    core: SimpleNamespace, changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    header = header_of(changes, **fields)
    found = core.read_pull(framed(header), 0)
    expected = FAST_DECODERS[b"11"](header)
    assert PullMessage(*found[0]) == expected.header
    assert found[1] == expected.opaque


ODD_HEADERS = [
    header_of({"code": 12}), header_of({"code": None}), header_of({"opaque": None}),
    header_of({"opaque": -1}), header_of({"opaque": 1 << 31}), header_of({"flag": 1}),
    header_of({"flag": 2}), header_of({"other": 1}), header_of({"remark": None, "x": "y"}),
    header_of(queueId="+1"), header_of(queueId="01"), header_of(queueId="-1"),
    header_of(queueId=""), header_of(queueId=1), header_of(queueId=str(1 << 31)),
    header_of(queueOffset=str(1 << 63)), header_of(queueOffset="9" * 20), header_of(topic=None),
    header_of(topic="ü"), header_of(topic='a"b'), header_of(subscription="x" * 800),
    header_of({"extFields": {}}), header_of() + b" ", b" " + header_of(), b"", b"{}", b"{",
    header_of()[:-1] + b',"opaque":8}', header_of()[:-1] + b',"extFields":{"a":"b"}}',
    header_of().replace(b'"topic"', b'"topic":"a","topic"'), header_of().replace(b":", b" :", 1),
    header_of().replace(b"}", b",}", 1), header_of().replace(b'"t"', b'"\x01"'),
]  # fmt: skip


@pytest.mark.parametrize("header", ODD_HEADERS)
def test_odd_headers_are_left(core: SimpleNamespace, header: bytes) -> None:
    assert core.read_pull(framed(header), 0) == 1


def test_odd_frames_are_counted_up_to_the_next_plain_one(core: SimpleNamespace) -> None:
    plain, odd = framed(header_of()), framed(header_of({"code": 12}), b"body")
    with_body = framed(header_of(), b"body")
    assert core.read_pull(odd + with_body + plain, 0) == 2
    assert core.read_pull(odd * 40, 0) == 32
    assert core.read_pull(odd + plain[:-1], 0) == 1
    assert core.read_pull(plain[:-1], 0) == 0
    assert core.read_pull(plain[:7], 0) == 0
    for wrong in (bytes(8), b"\0\0\0\x08\0\0\0\x05", b"\0\0\1\0\1\0\0\x05"):
        assert core.read_pull(wrong + plain, 0) == 1
        assert core.read_pull(odd + wrong + plain, 0) == 2


def test_an_answer(core: SimpleNamespace) -> None:
    pieces = (b'{"a":', b',"b":', b"}")
    expected = framed(b'{"a":-9223372036854775808,"b":0}', b"onetwo")
    assert core.answer_frame(pieces, (-(1 << 63), 0), [b"one", memoryview(b"two")]) == expected
    assert core.answer_frame((b"{}",), (), ()) == framed(b"{}")
    for wrong in ((), (1,), (1, 2, 3)):
        with pytest.raises(ValueError, match="a piece of the header"):
            core.answer_frame(pieces, wrong, ())


# ------------------------------------------------------------------------------------ differential

TEXTS = st.sampled_from(
    ["0", "1", "42", "-1", "007", "+5", "", "x", "ü", 'q"', "9" * 18, "9" * 19, "9" * 20, None]
)
CHANGES = st.dictionaries(
    st.sampled_from([*pull_fields(0), "bname", "other"]), TEXTS, max_size=2
)  # fmt: skip
HEADS = st.dictionaries(
    st.sampled_from(["code", "flag", "opaque", "version", "remark", "other"]),
    st.sampled_from([0, 1, 2, 11, 361, 310, -1, 1 << 31, "x", "", None]),
    max_size=1,
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame, plain more often than not."""
    header = header_of() if draw(st.integers(0, 3)) else header_of(draw(HEADS), **draw(CHANGES))
    data = bytearray(framed(header, draw(st.sampled_from([b"", b"", b"", b"body"]))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def test_both_cores_read_the_same() -> None:
    plain = odd = 0

    @settings(max_examples=5 * settings().max_examples)
    @given(st.lists(frames(), max_size=5), st.binary(max_size=12), st.integers(0, 30))
    def same(parts: list[bytes], rest: bytes, less: int) -> None:
        nonlocal plain, odd
        data = b"".join(parts) + rest
        data = data[: max(len(data) - less, 0)]
        at = 0
        while True:
            first, *others = [core.read_pull(data, at) for core in cores()]
            assert others == [first] * len(others)
            if isinstance(first, int):
                odd += first
                break
            plain += 1
            assert at < first[2] <= len(data)
            at = first[2]

    same()
    # Or it would prove nothing.
    assert plain > settings().max_examples
    assert odd > settings().max_examples


@given(
    numbers=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=8),
    chunks=st.lists(st.binary(max_size=40), max_size=4),
    piece=st.binary(max_size=10),
)
def test_both_cores_answer_the_same(numbers: list[int], chunks: list[bytes], piece: bytes) -> None:
    pieces = tuple(piece[: n + 1] for n in range(len(numbers) + 1))
    found = {core.answer_frame(pieces, tuple(numbers), chunks) for core in cores()}
    assert len(found) == 1
