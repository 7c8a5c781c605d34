"""A client's plain sends: the frame of one, and the answers to those that wait.

This is the definition; compiled/requests.pyx does the same, byte for byte. An answer is plain when
all of this holds; every other frame is odd, and is read one by one:

- its header is JSON without blanks of less than 1 KiB, each name once, of the names that brokers
  send, all strings in ASCII without escapes, all numbers without a sign or leading zeros;
- its code is 0 and its flag 1, and it has no remark and no body;
- its fields say where the message is, in the queue that was asked, and hold no handle to recall it;
- a plain send of this opaque waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

_LENGTHS: Final = Struct(">II")
_HEADER_MAX_BYTES: Final = 1_023
_ODD_MAX: Final = 32
_INT_MAX: Final = 0x7FFFFFFF
_LONG_MAX: Final = 0x7FFFFFFFFFFFFFFF
_STRING: Final = re.compile(rb'"([^"\\\x00-\x1f\x80-\xff]*+)"')
_NUMBER: Final = re.compile(rb"(?:0|[1-9][0-9]{0,18})(?![0-9])")
#: Names of an answer's fields, and the largest of each number; texts have none.
_FIELDS: Final = {
    b"msgId": 0, b"queueId": _INT_MAX, b"queueOffset": _LONG_MAX, b"transactionId": 0,
    b"MSG_REGION": 0, b"TRACE_ON": 0,
}  # fmt: skip
_REQUIRED: Final = tuple(_FIELDS)[:3]
#: A plain send that waits has so many parts.
_PLAIN_PARTS: Final = 4
#: What stands for a character in a string of JSON.
_ESCAPES: Final = {
    **{number: f"\\u{number:04x}" for number in range(0x20)},
    **{ord(mark): "\\" + name for mark, name in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)},
}
#: The pieces of a send's header round its queue id, its time, its properties and its opaque.
_PIECES: Final = 5


class Waiter(Protocol):
    """The future of a plain send."""

    def done(self) -> bool:
        """Whether nobody waits for a result any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Give the result."""
        ...


#: What the results of one queue have in common: what makes one, the status that it has, the queue,
#: the queue's id.
Place: TypeAlias = tuple[Callable[..., Any], Any, Any, int]
#: A request that waits: its deadline and its owner's token; a plain send's token is its Waiter, and
#: its key and its place follow.
Waiting: TypeAlias = tuple[int, Any] | tuple[int, Any, str, Place]


class _Odd(Exception):
    """A frame is no plain answer."""


def send_frame(
    pieces: Sequence[bytes], queue_id: int, born_ms: int, properties: str, opaque: int, body: bytes
) -> bytes:
    """The frame of a request to store ``body``: its header are the pieces with the queue id, the
    time, the properties (as a string of JSON) and the opaque between them.

    Raises UnicodeEncodeError for what UTF-8 cannot say.
    """
    if len(pieces) != _PIECES:
        raise ValueError("a header has five pieces round four values")
    text = properties.translate(_ESCAPES).encode()
    values = (b"%d" % queue_id, b"%d" % born_ms, text, b"%d" % opaque, b"")
    head = b"".join([piece + value for piece, value in zip(pieces, values, strict=True)])
    return _LENGTHS.pack(4 + len(head) + len(body), len(head)) + head + body


def settle_sends(data: bytes, at: int, waiting: dict[int, Waiting]) -> tuple[int, int]:
    """Give plain sends that wait the results that stand in the frames from ``data[at]`` on.

    A result is what its place makes of the status, the key, the message id, the queue, the queue
    offset, the transaction id and the region. Returns where the first frame begins that was not
    taken, and how many frames from there on are odd; 0 when more bytes are needed.
    """
    if not 0 <= at <= len(data):
        raise ValueError("a begin outside the data")
    begin, odd = at, 0
    while odd < _ODD_MAX and len(data) - at >= _LENGTHS.size:
        total, word = _LENGTHS.unpack_from(data, at)
        stop = at + 4 + total
        if total < 4 + (word & 0xFFFFFF):
            # What cannot be right is for others to refuse.
            return begin, odd + 1
        if stop > len(data):
            break
        is_short = word == total - 4 and word <= _HEADER_MAX_BYTES
        result = _result(data[at + 8 : stop], waiting) if is_short else None
        if result is None:
            odd += 1
        elif odd:
            break
        else:
            opaque, waiter, found = result
            del waiting[opaque]
            if not waiter.done():
                waiter.set_result(found)
            begin = stop
        at = stop
    return begin, odd


def _result(header: bytes, waiting: dict[int, Waiting]) -> tuple[int, Waiter, Any] | None:
    """The opaque of a plain answer, the future that waits for it, and the result."""
    try:
        opaque, fields = _parse(header)
    except _Odd:
        return None
    known = waiting.get(opaque)
    if known is None or len(known) != _PLAIN_PARTS:
        return None
    _, waiter, key, (make, status, queue, queue_id) = known
    if int(fields[b"queueId"]) != queue_id:
        return None
    region = b"" if fields.get(b"TRACE_ON") == b"false" else fields.get(b"MSG_REGION", b"")
    message_id, offset = fields[b"msgId"].decode(), int(fields[b"queueOffset"])
    transaction_id = fields.get(b"transactionId", b"").decode()
    return (
        opaque,
        waiter,
        make(status, key, message_id, queue, offset, transaction_id, region.decode()),
    )


def _parse(header: bytes) -> tuple[int, dict[bytes, bytes]]:
    found: dict[bytes, int | None] = {}
    fields: dict[bytes, bytes] = {}
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
        elif name in (b"language", b"serializeTypeCurrentRPC"):
            _, at = _string(header, at)
        else:
            raise _Odd
        if header[at : at + 1] == b"}":
            break
        at = _expect(header, at, b",")
    opaque = found.get(b"opaque")
    if at + 1 != len(header) or found.get(b"code") != 0 or found.get(b"flag") != 1:
        raise _Odd
    if opaque is None or any(name not in fields for name in _REQUIRED):
        raise _Odd
    return opaque, fields


def _parse_fields(header: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    fields: dict[bytes, bytes] = {}
    at = _expect(header, at, b"{")
    while True:
        name, at = _string(header, at)
        at = _expect(header, at, b":")
        value, at = _string(header, at)
        if name in fields or name not in _FIELDS:
            raise _Odd
        if limit := _FIELDS[name]:
            _, end = _number(value, 0, limit)
            if end != len(value):
                raise _Odd
        fields[name] = value
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
