"""A client's plain sends and pulls: the frame of a send, and the answers to those that wait.

This is the definition; compiled/requests.pyx does the same, byte for byte. An answer is plain when
all of this holds; every other frame is odd, and is read one by one:

- its header is plain (headers.py), of less than 1 KiB, all strings in ASCII without escapes;
- its code is 0 and its flag 1, and it has no remark;
- a send: it has no body; its fields say where the message is, in the queue that was asked, and hold
  no handle to recall it; a plain send of this opaque waits for it;
- a pull: its fields are the four that every broker answers; a plain pull of this opaque waits for
  it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
#: A plain send that waits has so many parts; so many fields of an answer are for it, of which so
#: many have to be there.
_SEND_PARTS: Final = 4
_SEND_FIELDS: Final = 6
_SEND_REQUIRED: Final = 3
_PULL_PARTS: Final = 3
#: What stands for a character in a string of JSON.
_ESCAPES: Final = {
    **{number: f"\\u{number:04x}" for number in range(0x20)},
    **{ord(mark): "\\" + name for mark, name in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)},
}
#: The pieces of a send's header round its queue id, its time, its properties and its opaque.
_PIECES: Final = 5


class Waiter(Protocol):
    """The future of a plain send or pull."""

    def done(self) -> bool:
        """Whether nobody waits for a result any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Give the result."""
        ...


#: What the results of one queue have in common: what makes one, the status that it has, the queue,
#: the queue's id.
Place: TypeAlias = tuple[Callable[..., Any], Any, Any, int]
#: A request that waits: its deadline and its owner's token; that of a plain one is its Waiter. A
#: send's key and place follow, or what makes an answer of a pull's body and its four fields.
Waiting: TypeAlias = (
    tuple[int, Any] | tuple[int, Any, str, Place] | tuple[int, Any, Callable[..., Any]]
)


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
    return LENGTHS.pack(4 + len(head) + len(body), len(head)) + head + body


def settle_plain(data: bytes, at: int, waiting: dict[int, Waiting]) -> tuple[int, int]:
    """Give plain requests that wait the results that stand in the frames from ``data[at]`` on.

    A send's result is what its place makes of the status, the key, the message id, the queue, the
    queue offset, the transaction id and the region; a pull's what its maker makes of the body, the
    broker id that is suggested, and the next, the lowest and the highest offset. Returns where the
    first frame begins that was not taken, and how many frames from there on are odd; 0 when more
    bytes are needed.
    """
    if not 0 <= at <= len(data):
        raise ValueError("a begin outside the data")
    begin, odd = at, 0
    while odd < ODD_MAX and len(data) - at >= LENGTHS.size:
        total, word = LENGTHS.unpack_from(data, at)
        stop = at + 4 + total
        if total < 4 + (word & 0xFFFFFF):
            # What cannot be right is for others to refuse.
            return begin, odd + 1
        if stop > len(data):
            break
        is_short = word <= SHORT_HEADER_MAX_BYTES
        result = _result(data, at + 8, at + 8 + word, stop, waiting) if is_short else None
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


def _result(
    data: bytes, at: int, body_at: int, stop: int, waiting: dict[int, Waiting]
) -> tuple[int, Waiter, Any] | None:
    """The opaque of a plain answer, the future that waits for it, and the result."""
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
