"""Plain pulls off a connection, and answers that begin with a text and some numbers.

This is the definition; compiled/pullframes.pyx does the same, byte for byte. A pull is plain when
all of this holds; every other frame is odd, and is served one by one:

- its header is plain (headers.py), of less than 1 KiB, all strings in ASCII without escapes;
- its code is 11 or 361, it wants an answer, and all that upstream requires is there;
- it has no body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from cometmq.speedups.plain.headers import (
    LENGTHS,
    LONG_NUMBER,
    NUMBER,
    ODD_MAX,
    SHORT_HEADER_MAX_BYTES,
    TEXT,
    Form,
    Odd,
    read_header,
)

#: Bits of the frame's flag: a response, and a request without one.
_ODD_FLAGS: Final = 3
#: The last two fields may be missing.
_PULL: Final = Form(
    {
        b"consumerGroup": TEXT, b"topic": TEXT, b"queueId": NUMBER, b"queueOffset": LONG_NUMBER,
        b"maxMsgNums": NUMBER, b"sysFlag": NUMBER, b"commitOffset": LONG_NUMBER,
        b"suspendTimeoutMillis": LONG_NUMBER, b"subVersion": LONG_NUMBER, b"subscription": TEXT,
        b"expressionType": TEXT,
    },
    required=9,
)  # fmt: skip
_FORMS: Final = {11: _PULL, 361: _PULL}

#: The fields of a pull, in the order of its header.
PullFields: TypeAlias = tuple[
    str, str, int, int, int, int, int, int, int, str | None, str | None
]  # fmt: skip


def read_pull(data: bytes, at: int) -> tuple[PullFields, int, int] | int:
    """The plain pull whose frame begins at ``data[at]``: its fields, its opaque, and where the next
    frame begins. Else how many frames from there on are odd; 0 when more bytes are needed."""
    if not 0 <= at <= len(data):
        raise ValueError("a begin outside the data")
    odd = 0
    while odd < ODD_MAX and len(data) - at >= LENGTHS.size:
        total, word = LENGTHS.unpack_from(data, at)
        stop = at + 4 + total
        if total < 4 + word:
            # Of another kind, or nothing that can be told apart.
            return odd + 1
        if stop > len(data):
            break
        if word == total - 4 and word <= SHORT_HEADER_MAX_BYTES:
            try:
                found = _read(data[at + 8 : stop])
            except Odd:
                pass
            else:
                return odd or (*found, stop)
        odd += 1
        at = stop
    return odd


def _read(header: bytes) -> tuple[PullFields, int]:
    found = read_header(header, _FORMS)
    if found.flag & _ODD_FLAGS:
        raise Odd
    fields = [field.decode() if isinstance(field, bytes) else field for field in found.fields]
    return tuple(fields), found.opaque  # type: ignore[return-value]


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
    return b"".join((LENGTHS.pack(total, len(head)), head, *chunks))
