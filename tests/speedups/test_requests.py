"""A client's plain sends: both cores write the same frames, and read the same of any answers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.message import batch
from cometmq.protocol.codes import Language
from cometmq.protocol.connection import Connection
from cometmq.protocol.fields import to_ext
from cometmq.protocol.frame import head_pieces, lengths
from cometmq.protocol.headers import SendMessageV2
from tests.conftest import cores

FIELDS = {"msgId": "7F01", "queueId": "3", "queueOffset": "12"}
PULL_FIELDS: dict[str, Any] = {
    "suggestWhichBrokerId": "1", "nextBeginOffset": "44", "minOffset": "0", "maxOffset": "99",
}  # fmt: skip
NO_SEND: dict[str, Any] = dict.fromkeys(FIELDS)
KEY = "7F0000010001"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


class Waiter:
    """A future that remembers."""

    def __init__(self, *, is_done: bool = False) -> None:
        self.is_done = is_done
        self.results: list[Any] = []

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any) -> None:
        self.results.append(result)


def made(*parts: Any) -> tuple[Any, ...]:
    return parts


def header_of(changes: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """The header of an answer; a field of None is left out."""
    ext = {name: value for name, value in (FIELDS | fields).items() if value is not None}
    head = {"code": 0, "extFields": ext, "flag": 1, "language": "JAVA", "opaque": 7}
    head = {name: value for name, value in (head | (changes or {})).items() if value is not None}
    return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()


def framed(header: bytes, body: bytes = b"") -> bytes:
    return lengths(len(header), len(body)) + header + body


def waiting_sends(*opaques: int) -> dict[int, Any]:
    place = (made, "OK", "queue", 3)
    return {opaque: (99, Waiter(), f"{KEY}{opaque}", place) for opaque in opaques}


@given(
    texts=st.tuples(TEXTS, TEXTS, TEXTS, TEXTS),
    queue_id=st.integers(0, 2**31 - 1),
    born_ms=st.integers(0, 2**63 - 1),
    body=st.binary(max_size=50),
)
def test_a_frame_is_the_encoders(
    texts: tuple[str, str, str, str], queue_id: int, born_ms: int, body: bytes
) -> None:
    group, topic, broker, text = texts
    header = SendMessageV2(
        group, topic, "TBW102", 4, queue_id, 0, born_ms, 0, text, 0, False, None, False, broker
    )  # fmt: skip
    connection: Connection[None] = Connection(Language.PYTHON)
    for _ in range(2):
        opaque, head = connection.encode_request(310, header, None, 1, body_bytes=len(body))
        pieces = head_pieces(310, to_ext(header), Language.PYTHON, ("e", "g", "i"))
        for core in cores():
            frame = core.send_frame(pieces, queue_id, born_ms, text, opaque, body)
            assert frame == head + body, core.name


def test_a_frame_has_four_values_and_whole_characters(core: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="five pieces"):
        core.send_frame((b"", b"", b"", b""), 0, 0, "", 0, b"")
    with pytest.raises(UnicodeEncodeError):
        core.send_frame((b"",) * 5, 0, 0, "\ud800", 0, b"")
    assert core.send_frame((b"",) * 5, 0, -5, "", 1, b"") == lengths(4) + b"0-51"


def test_a_plain_answer_settles_its_send(core: SimpleNamespace) -> None:
    waiting = waiting_sends(7, 8)
    waiter = waiting[7][1]
    frame = framed(header_of(MSG_REGION="here", TRACE_ON="true", transactionId="T"))
    assert core.settle_plain(b"??" + frame, 2, waiting) == (2 + len(frame), 0)
    assert waiter.results == [("OK", f"{KEY}7", "7F01", "queue", 12, "T", "here")]
    assert list(waiting) == [8]
    assert core.settle_plain(frame, len(frame), waiting) == (len(frame), 0)
    for wrong in (-1, len(frame) + 1):
        with pytest.raises(ValueError, match="outside"):
            core.settle_plain(frame, wrong, waiting)


def test_a_send_that_nobody_waits_for_is_only_forgotten(core: SimpleNamespace) -> None:
    waiting = waiting_sends(7)
    waiting[7][1].is_done = True
    waiter = waiting[7][1]
    assert core.settle_plain(framed(header_of()), 0, waiting)[1] == 0
    assert (waiting, waiter.results) == ({}, [])


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"version": 453, "serializeTypeCurrentRPC": "JSON"}, {}),
        ({"language": None}, {"MSG_REGION": "", "TRACE_ON": "false"}),
        ({}, {"queueOffset": str(2**63 - 1), "msgId": ""}),
    ],
)
def test_what_brokers_send_besides(
    core: SimpleNamespace, changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    waiting = waiting_sends(7)
    frame = framed(header_of(changes, **fields))
    assert core.settle_plain(frame, 0, waiting) == (len(frame), 0)
    assert not waiting


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"code": 10}, {}),
        ({"code": None}, {}),
        ({"flag": 0}, {}),
        ({"flag": 3}, {}),
        ({"opaque": 9}, {}),
        ({"opaque": None}, {}),
        ({"opaque": 2**31}, {}),
        ({"opaque": "7"}, {}),
        ({"remark": "x"}, {}),
        ({"extFields": None}, {}),
        ({"extFields": {}}, {}),
        ({"other": 1}, {}),
        ({}, {"msgId": None}),
        ({}, {"msgId": "\u00e9"}),
        ({}, {"msgId": 'a"'}),
        ({}, {"queueId": "4"}),
        ({}, {"queueId": "03"}),
        ({}, {"queueId": "+3"}),
        ({}, {"queueId": ""}),
        ({}, {"queueId": 3}),
        ({}, {"queueOffset": str(2**63)}),
        ({}, {"queueOffset": "-1"}),
        ({}, {"recallHandle": "h"}),
    ],
)
def test_other_answers_are_odd(
    core: SimpleNamespace, changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    waiting = waiting_sends(7, 8)
    waiting[9] = (99, Waiter())
    odd = framed(header_of(changes, **fields))
    plain = framed(header_of({"opaque": 8}))
    # What is plain behind an odd one is taken once the odd one was.
    assert core.settle_plain(odd + plain, 0, waiting) == (0, 1)
    assert core.settle_plain(plain + odd, 0, waiting) == (len(plain), 1)
    assert list(waiting) == [7, 9]
    assert not waiting[7][1].results


def test_a_body_or_another_codec_is_odd(core: SimpleNamespace) -> None:
    waiting = waiting_sends(7)
    header = header_of()
    for odd in (
        framed(header, b"body"),
        lengths(len(header), 0, 1) + header,
        framed(header_of({"language": "x" * 1_024})),
        framed(header.replace(b'"flag":1', b'"flag":1,"flag":1')),
        framed(header.replace(b'"msgId"', b'"queueId":"3","msgId"')),
        framed(header.replace(b":", b": ", 1)),
        framed(header + b" "),
        framed(b""),
    ):
        assert core.settle_plain(odd, 0, waiting) == (0, 1)
    assert core.settle_plain(b"\0\0\0\1" + bytes(9), 0, waiting) == (0, 1)
    assert core.settle_plain(framed(b"") * 40, 0, waiting) == (0, 32)
    assert list(waiting) == [7]


def test_a_plain_answer_settles_its_pull(core: SimpleNamespace) -> None:
    waiting = waiting_sends(8) | {7: (99, Waiter(), made)}
    waiter = waiting[7][1]
    frame = framed(header_of(**NO_SEND, **PULL_FIELDS), b"records")
    assert core.settle_plain(frame, 0, waiting) == (len(frame), 0)
    assert waiter.results == [(b"records", 1, 44, 0, 99)]
    assert list(waiting) == [8]


@pytest.mark.parametrize(
    "fields",
    [
        {"maxOffset": None},
        {"maxOffset": "-1"},
        {"topicSysFlag": "0"},
        {"msgId": "7F01"},
        {"nextBeginOffset": str(2**63)},
    ],
)
def test_other_answers_to_pulls_are_odd(
    core: SimpleNamespace, fields: dict[str, str | None]
) -> None:
    waiting: dict[int, Any] = {7: (99, Waiter(), made)}
    frame = framed(header_of(**NO_SEND | PULL_FIELDS | fields))
    assert core.settle_plain(frame, 0, waiting) == (0, 1)
    # Nor is the answer of a send that of a pull, or the other way round.
    assert core.settle_plain(framed(header_of()), 0, waiting) == (0, 1)
    of_pull = framed(header_of(**NO_SEND, **PULL_FIELDS))
    assert core.settle_plain(of_pull, 0, waiting_sends(7)) == (0, 1)
    assert list(waiting) == [7]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Answers, most of them plain, some changed, in bytes that may end anywhere."""
    frames: list[bytes] = []
    for opaque in draw(st.lists(st.integers(0, 8), min_size=1, max_size=6)):
        offset = draw(st.integers(0, 2**63 - 1) | st.integers(2**63 - 9, 2**63 + 9))
        header: bytes | bytearray
        if draw(st.booleans()):
            header = header_of({"opaque": opaque}, queueOffset=str(offset))
        else:
            fields: dict[str, Any] = NO_SEND | PULL_FIELDS | {"nextBeginOffset": str(offset)}
            header = header_of({"opaque": opaque}, **fields)
        if draw(st.integers(0, 5)) == 5:
            header = bytearray(header)
            header[draw(st.integers(0, len(header) - 1))] ^= 1 << draw(st.integers(0, 7))
        frames.append(framed(bytes(header), b"x" * (draw(st.integers(0, 9)) == 9)))
    data = bytearray(b"".join(frames))
    if draw(st.integers(0, 5)) == 5:
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data[: len(data) - max(0, draw(st.integers(-300, 300)))])


def test_both_cores_read_the_same() -> None:
    taken = 0

    @settings(max_examples=400)
    @given(data=streams())
    def check(data: bytes) -> None:
        nonlocal taken
        outcomes = []
        for core in cores():
            waiting = waiting_sends(0, 1, 2, 3, 4, 5)
            waiting[6] = (99, Waiter())
            waiting |= {opaque: (99, Waiter(), made) for opaque in (4, 5)}
            waiters = {opaque: known[1] for opaque, known in waiting.items()}
            found = core.settle_plain(data, 0, waiting)
            outcomes.append((found, list(waiting), [each.results for each in waiters.values()]))
            taken += 7 - len(waiting)
        assert all(outcome == outcomes[0] for outcome in outcomes)

    check()
    assert taken > 100  # many of these were plain


@given(
    entries=st.lists(
        st.tuples(st.binary(max_size=60), TEXTS, TEXTS, st.integers(-(2**31), 2**31 - 1)),
        max_size=6,
    ),
    with_flags=st.booleans(),
)
def test_a_batch_body_holds_the_messages(
    entries: list[tuple[bytes, str, str, int]], with_flags: bool
) -> None:
    bodies, texts, keys, flags = map(list, zip(*entries, strict=True)) if entries else ([],) * 4
    for core in cores():
        packed = core.batch_body(bodies, texts, keys, flags if with_flags else [])
        found = batch.split(packed)
        assert [each.body for each in found] == bodies
        assert [each.flag for each in found] == (flags if with_flags else [0] * len(bodies))
        for each, text, key in zip(found, texts, keys, strict=True):
            own = f"UNIQ_KEY\x01{key}"
            assert each.properties.decode() == (f"{text}\x02{own}" if text else own)


def test_a_batch_body_is_refused_with_its_reason(core: SimpleNamespace) -> None:
    assert core.batch_body([], [], [], []) == b""
    longest = "x" * (32_767 - len("\x02UNIQ_KEY\x01K"))
    assert core.batch_body([b""], [longest], ["K"], [])
    with pytest.raises(ValueError, match="32768 bytes; the limit is 32767"):
        core.batch_body([b"", b""], ["", longest + "x"], ["K", "K"], [])
    for short in ([[b""], [], ["K"], []], [[b""], [""], [], []], [[b""], [""], ["K"], [1, 2]]):
        with pytest.raises(ValueError, match=r"argument|lengths"):
            core.batch_body(*short)
    for text in ("\ud800", "a\udfff"):
        with pytest.raises(UnicodeEncodeError):
            core.batch_body([b""], [text], ["K"], [])
        with pytest.raises(UnicodeEncodeError):
            core.batch_body([b""], [""], [text], [])


@given(st.integers(0, 0xFFFF), st.integers(0, 300))
def test_unique_keys_count_round(first: int, count: int) -> None:
    expected = [f"STEM{number % 65_536:04X}" for number in range(first, first + count)]
    for core in cores():
        assert core.unique_keys("STEM", first, count) == expected


def test_a_batch_has_a_result_for_each_message(core: SimpleNamespace) -> None:
    found = core.batch_results(made, "OK", ["K1", "K2", "K3"], "A,,C", "queue", 7, "region")
    assert found == [
        ("OK", "K1", "A", "queue", 7, "", "region"),
        ("OK", "K2", "", "queue", 8, "", "region"),
        ("OK", "K3", "C", "queue", 9, "", "region"),
    ]
    for ids in ("", "A", "A,B,C"):
        with pytest.raises(ValueError, match="ids for 2 messages"):
            core.batch_results(made, "OK", ["K1", "K2"], ids, "queue", 7, "")
