"""Plain pulls and their answers: both cores read the same of any stream, and write the same."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.protocol.frame import lengths
from cometmq.protocol.headers import PullMessage
from cometmq.protocol.registry import FAST_DECODERS
from tests.broker.serving import pull_fields
from tests.conftest import cores

FIELDS = ("g", "t", 1, 5, 32, 4, 0, 0, 0, "*", "TAG")


def header_of(changes: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """The header of a pull from offset 5 on; a field of None is left out."""
    ext = {name: value for name, value in (pull_fields(5) | fields).items() if value is not None}
    head = {"code": 11, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7}
    head = {name: value for name, value in (head | (changes or {})).items() if value is not None}
    return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()


def framed(header: bytes, body: bytes = b"") -> bytes:
    return lengths(len(header), len(body)) + header + body


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
