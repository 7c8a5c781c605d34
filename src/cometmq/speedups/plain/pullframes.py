"""Plain pulls off a connection, and answers that begin with a text and some numbers.

This is the definition; compiled/pullframes.pyx does the same, byte for byte. A pull is plain when
all of this holds; every other frame is odd, and is served one by one:

- its header is JSON without blanks of less than 1 KiB, each name once, of the names that clients
  send, all strings in ASCII without escapes;
- its code is 11 or 361, it wants an answer, all that upstream requires is there, and no number has
  a sign or leading zeros;
- it has no body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

_LENGTHS: Final = Struct(">II")
_HEADER_MAX_BYTES: Final = 1_023
_ODD_MAX: Final = 32
_INT_MAX: Final = 0x7FFFFFFF
_LONG_MAX: Final = 0x7FFFFFFFFFFFFFFF
_CODES: Final = (11, 361)
#: Bits of the frame's flag: a response, and a request without one.
_ODD_FLAGS: Final = 3
_STRING: Final = re.compile(rb'"([^"\\\x00-\x1f\x80-\xff]*+)"')
_NUMBER: Final = re.compile(rb"(?:0|[1-9][0-9]{0,18})(?![0-9])")
#: Names of the fields in the order in which they are given, and the largest of each number; texts
#: have none. The last two may be missing.
_FIELDS: Final = {
    b"consumerGroup": 0, b"topic": 0, b"queueId": _INT_MAX, b"queueOffset": _LONG_MAX,
    b"maxMsgNums": _INT_MAX, b"sysFlag": _INT_MAX, b"commitOffset": _LONG_MAX,
    b"suspendTimeoutMillis": _LONG_MAX, b"subVersion": _LONG_MAX, b"subscription": 0,
    b"expressionType": 0,
}  # fmt: skip
_REQUIRED: Final = tuple(_FIELDS)[:9]

#: The fields of a pull, in the order of its header.
PullFields: TypeAlias = tuple[
    str, str, int, int, int, int, int, int, int, str | None, str | None
]  # fmt: skip


class _Odd(Exception):
    """A frame is no plain pull."""


def read_pull(data: bytes, at: int) -> tuple[PullFields, int, int] | int:
    """The plain pull whose frame begins at ``data[at]``: its fields, its opaque, and where the next
    frame begins. Else how many frames from there on are odd; 0 when more bytes are needed."""
    if not 0 <= at <= len(data):
        raise ValueError("a begin outside the data")
    odd = 0
    while odd < _ODD_MAX and len(data) - at >= _LENGTHS.size:
        total, word = _LENGTHS.unpack_from(data, at)
        stop = at + 4 + total
        if total < 4 + word:
            # Of another kind, or nothing that can be told apart.
            return odd + 1
        if stop > len(data):
            break
        if word == total - 4 and word <= _HEADER_MAX_BYTES:
            try:
                fields, opaque = _parse(data[at + 8 : stop])
            except _Odd:
                pass
            else:
                return odd or (fields, opaque, stop)
        odd += 1
        at = stop
    return odd


def _parse(header: bytes) -> tuple[PullFields, int]:
    found: dict[bytes, int | None] = {}
    fields: dict[bytes, str | int] = {}
    at = _expect(header, 0, b"{")
    while True:
        name, at = _string(header, at)
        at = _expect(header, at, b":")
        if name in found:
            raise _Odd
        found[name] = None
        if name in (b"code", b"flag", b"opaque", b"version"):
            found[name], at = _number(header, at, _INT_MAX)
        elif name == b"extFields":
            fields, at = _parse_fields(header, at)
        elif name in (b"language", b"serializeTypeCurrentRPC", b"remark"):
            _, at = _string(header, at)
        else:
            raise _Odd
        if header[at : at + 1] == b"}":
            break
        at = _expect(header, at, b",")
    opaque = found.get(b"opaque")
    if at + 1 != len(header) or found.get(b"code") not in _CODES or opaque is None:
        raise _Odd
    if (found.get(b"flag") or 0) & _ODD_FLAGS or any(name not in fields for name in _REQUIRED):
        raise _Odd
    return tuple(fields.get(name) for name in _FIELDS), opaque  # type: ignore[return-value]


def _parse_fields(header: bytes, at: int) -> tuple[dict[bytes, str | int], int]:
    fields: dict[bytes, str | int] = {}
    at = _expect(header, at, b"{")
    while True:
        name, at = _string(header, at)
        at = _expect(header, at, b":")
        value, at = _string(header, at)
        if name in fields:
            raise _Odd
        if name in _FIELDS:
            fields[name] = value.decode()
            if limit := _FIELDS[name]:
                fields[name], end = _number(value, 0, limit)
                if end != len(value):
                    raise _Odd
        if header[at : at + 1] == b"}":
            return fields, at + 1
        at = _expect(header, at, b",")


def _expect(header: bytes, at: int, mark: bytes) -> int:
    if header[at : at + 1] != mark:
        raise _Odd
    return at + 1


def _string(header: bytes, at: int) -> tuple[bytes, int]:
    found = _STRING.match(header, at)
    if found is None:
        raise _Odd
    return found[1], found.end()


def _number(header: bytes, at: int, limit: int) -> tuple[int, int]:
    found = _NUMBER.match(header, at)
    if found is None or int(found[0]) > limit:
        raise _Odd
    return int(found[0]), found.end()


def answer_frame(
    pieces: tuple[bytes, ...],
    numbers: tuple[int, ...],
    chunks: Sequence[bytes | bytearray | memoryview],
) -> bytes:
    """The frame of an answer: its header are the pieces with a number behind each but the last, its
    body the chunks."""
    if len(pieces) != len(numbers) + 1:
        raise ValueError("a piece of the header stands before each number, and one at the end")
    head = b"".join([b"%b%d" % pair for pair in zip(pieces, numbers, strict=False)]) + pieces[-1]
    total = 4 + len(head) + sum(map(len, chunks))
    return b"".join((_LENGTHS.pack(total, len(head)), head, *chunks))
