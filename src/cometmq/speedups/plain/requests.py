"""The client's side of plain sends and pulls: frames of sends, bodies of batches, and the results
from answers.

This is the definition; compiled/requests.pyx does the same, byte for byte. An answer is plain if
all of the following is true; every other frame is odd and is handled individually:

- its header is plain (headers.py) and shorter than 1 KiB, all strings are ASCII without escapes;
- its code is 0, its flag is 1, and it has no remark;
- for a send: it has no body, its fields have the place of the message in the requested queue and no
  recall handle, and a plain send with this opaque is pending;
- for a pull: its fields are the four that every broker returns, and a plain pull with this opaque
  is pending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

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
from cometmq.speedups.plain.properties import PROPERTIES_MAX_BYTES

_FORMS: Final = {
    0: Form(
        {
            b"msgId": TEXT, b"queueId": NUMBER, b"queueOffset": LONG_NUMBER, b"transactionId": TEXT,
            b"MSG_REGION": TEXT, b"TRACE_ON": TEXT,
            b"suggestWhichBrokerId": LONG_NUMBER, b"nextBeginOffset": LONG_NUMBER,
            b"minOffset": LONG_NUMBER, b"maxOffset": LONG_NUMBER,
        },
        required=0,
        has_others=False,
    )
}  # fmt: skip
#: Size of the tuple of a pending plain send (``Waiting``).
_SEND_PARTS: Final = 4
#: Number of the answer's fields that belong to a send, and number of those that are required.
_SEND_FIELDS: Final = 6
_SEND_REQUIRED: Final = 3
#: Size of the tuple of a pending plain pull.
_PULL_PARTS: Final = 3
#: Escape sequences of characters in a JSON string.
_ESCAPES: Final = {
    **{number: f"\\u{number:04x}" for number in range(0x20)},
    **{ord(mark): "\\" + name for mark, name in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)},
}
#: Number of header pieces of a send, around its queue id, born time, properties and opaque.
_PIECES: Final = 5
#: Size, magic, CRC, flag and body length of an entry of a batch, then the length of its properties.
_ENTRY: Final = Struct(">iiiii")
_LENGTH: Final = Struct(">H")
_COUNTER_MASK: Final = 0xFFFF


class Waiter(Protocol):
    """Future of a plain send or pull."""

    def done(self) -> bool:
        """Return whether the future is already done, for example because it was cancelled."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Set the result."""
        ...


#: Common parts of the results of sends to one queue: the result factory, the status, the queue, and
#: the queue id.
Place: TypeAlias = tuple[Callable[..., Any], Any, Any, int]
#: A pending request: its deadline and its owner's token. For a plain request the token is its
#: Waiter, followed by the key and the place of a send, or by the function that builds the result of
#: a pull from the body and the four fields.
Waiting: TypeAlias = (
    tuple[int, Any] | tuple[int, Any, str, Place] | tuple[int, Any, Callable[..., Any]]
)


def send_frame(
    pieces: Sequence[bytes], queue_id: int, born_ms: int, properties: str, opaque: int, body: bytes
) -> bytes:
    """Return the request frame of a send, its body included.

    The header consists of ``pieces``, with the queue id, ``born_ms``, the properties (as a JSON
    string) and the opaque between them.

    Raises UnicodeEncodeError for text that UTF-8 cannot encode.
    """
    if len(pieces) != _PIECES:
        raise ValueError("a header has five pieces round four values")
    text = properties.translate(_ESCAPES).encode()
    values = (b"%d" % queue_id, b"%d" % born_ms, text, b"%d" % opaque, b"")
    head = b"".join([piece + value for piece, value in zip(pieces, values, strict=True)])
    return LENGTHS.pack(4 + len(head) + len(body), len(head)) + head + body


def unique_keys(stem: str, first: int, count: int) -> list[str]:
    """Return ``count`` unique keys: ``stem`` and four hex digits, which count from ``first``."""
    return [f"{stem}{number & _COUNTER_MASK:04X}" for number in range(first, first + count)]


def batch_body(bodies: list[bytes], texts: list[str], keys: list[str], flags: list[int]) -> bytes:
    """Return the body of a batch send (message/batch.py) with a message for each of ``bodies``.

    The properties of a message are its item of ``texts``, then its unique key from ``keys``. If
    ``flags`` is empty, all flags are 0. Raises ValueError for lists of different lengths and for
    properties longer than 32 767 bytes, UnicodeEncodeError for text that UTF-8 cannot encode.
    """
    parts: list[bytes] = []
    for body, text, key, flag in zip(bodies, texts, keys, flags or [0] * len(bodies), strict=True):
        properties = f"{text}\x02UNIQ_KEY\x01{key}" if text else f"UNIQ_KEY\x01{key}"
        own = properties.encode()
        if len(own) > PROPERTIES_MAX_BYTES:
            raise ValueError(f"properties have {len(own)} bytes; the limit is 32767")
        size = _ENTRY.size + len(body) + _LENGTH.size + len(own)
        parts += _ENTRY.pack(size, 0, 0, flag, len(body)), body, _LENGTH.pack(len(own)), own
    return b"".join(parts)


def batch_results(
    make: Callable[..., Any],
    status: Any,
    keys: list[str],
    ids: str,
    queue: Any,
    offset: int,
    region: str,
) -> list[Any]:
    """Return the results of a batch that was stored with consecutive queue offsets from ``offset``.

    ``ids`` are the message ids, separated by commas. ``make`` builds a result as for
    :func:`settle_plain`. Raises ValueError unless there are as many ids as ``keys``.
    """
    found = ids.split(",")
    if len(found) != len(keys):
        raise ValueError(f"{len(found)} ids for {len(keys)} messages")
    return [
        make(status, key, message_id, queue, offset + at, "", region)
        for at, (key, message_id) in enumerate(zip(keys, found, strict=True))
    ]


def settle_plain(data: bytes, at: int, waiting: dict[int, Waiting]) -> tuple[int, int]:
    """Complete pending plain requests from the answer frames that start at ``data[at]``.

    The result of a send is built by the factory of its place from the status, the key, the message
    id, the queue, the queue offset, the transaction id and the region. The result of a pull is
    built by its own function from the body, the suggested broker id, and the next, minimum and
    maximum offsets.

    Returns the position of the first frame that was not taken, and the number of consecutive odd
    frames from there on; 0 if more data is needed.
    """
    if not 0 <= at <= len(data):
        raise ValueError("a begin outside the data")
    begin, odd = at, 0
    while odd < ODD_MAX and len(data) - at >= LENGTHS.size:
        total, word = LENGTHS.unpack_from(data, at)
        stop = at + 4 + total
        if total < 4 + (word & 0xFFFFFF):
            # Count it as odd: the general frame reader reports invalid lengths.
            return begin, odd + 1
        if stop > len(data):
            break
        is_short = word <= SHORT_HEADER_MAX_BYTES
        result = _result(data, at + 8, at + 8 + word, stop, waiting) if is_short else None
        if result is None:
            odd += 1
        # Stop at a plain frame after odd ones, so that the caller handles those first.
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


def _result(
    data: bytes, at: int, body_at: int, stop: int, waiting: dict[int, Waiting]
) -> tuple[int, Waiter, Any] | None:
    """Return the opaque of a plain answer, its pending future and the result; None if it is odd."""
    try:
        found = read_header(data[at:body_at], _FORMS)
    except Odd:
        return None
    known = waiting.get(found.opaque)
    if found.flag != 1 or found.has_remark or known is None:
        return None
    send, pull = found.fields[:_SEND_FIELDS], found.fields[_SEND_FIELDS:]
    if len(known) == _PULL_PARTS:
        if None in pull or any(value is not None for value in send):
            return None
        _, waiter, make_answer = known
        return found.opaque, waiter, make_answer(data[body_at:stop], *pull)
    if len(known) != _SEND_PARTS or body_at != stop:
        return None
    if None in send[:_SEND_REQUIRED] or any(value is not None for value in pull):
        return None
    message_id, found_id, offset, transaction_id, region, trace_on = send
    _, waiter, key, (make, status, queue, queue_id) = known
    if found_id != queue_id:
        return None
    region = b"" if trace_on == b"false" else region or b""
    result = make(
        status, key, message_id.decode(), queue, offset, (transaction_id or b"").decode(),
        region.decode(),
    )  # fmt: skip
    return found.opaque, waiter, result
