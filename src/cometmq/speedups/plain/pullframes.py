"""Plain pull requests, and answer frames that consist of text pieces and numbers.

This is the definition; compiled/pullanswers.pyx does the same, byte for byte. A pull is plain if
all of the following is true; every other frame is odd and is handled individually:

- its header is plain (headers.py) and shorter than 1 KiB, all strings are ASCII without escapes;
- its code is 11 or 361, it expects an answer, and it has all fields that upstream requires;
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

#: Flag bits that make a frame odd: a response, or a one-way request.
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

#: Fields of a pull, in the order of its header.
PullFields: TypeAlias = tuple[
    str, str, int, int, int, int, int, int, int, str | None, str | None
]  # fmt: skip


def read_pull(data: bytes, at: int) -> tuple[PullFields, int, int] | int:
    """Return the fields and the opaque of the plain pull at ``data[at]``, and the end of its frame.

    Returns the number of consecutive odd frames instead if the frame is odd; 0 if more data is
    needed.
    """
    if not 0 <= at <= len(data):
        raise ValueError("a begin outside the data")
    odd = 0
    while odd < ODD_MAX and len(data) - at >= LENGTHS.size:
        total, word = LENGTHS.unpack_from(data, at)
        stop = at + 4 + total
        if total < 4 + word:
            # A binary header, or a frame with invalid lengths.
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
    """Return the frame of an answer.

    The header consists of ``pieces`` with one of ``numbers`` after each but the last; the body
    consists of ``chunks``.
    """
    if len(pieces) != len(numbers) + 1:
        raise ValueError("a piece of the header stands before each number, and one at the end")
    head = b"".join([b"%b%d" % pair for pair in zip(pieces, numbers, strict=False)]) + pieces[-1]
    total = 4 + len(head) + sum(map(len, chunks))
    return b"".join((LENGTHS.pack(total, len(head)), head, *chunks))
