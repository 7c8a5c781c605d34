"""Protocol state of one side of a remoting connection, without I/O: bytes in, events and bytes out.

The owner of the socket passes received bytes in, takes events in bounded portions, and writes the
bytes that the ``encode_*`` methods return. Requests of this side are stored by opaque (the id that
a response repeats) until their response arrives or their deadline passes.

    stream that cannot be parsed      RemoteProtocolError; the owner closes the socket
    one request with invalid fields   a :class:`Rejected` event; other requests are not affected
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from cometmq.core.errors import BadRequest, RemoteProtocolError
from cometmq.protocol.codes import Language
from cometmq.protocol.fields import to_ext
from cometmq.protocol.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    JSON,
    Head,
    Request,
    Response,
    decode_head,
    encode_head,
)
from cometmq.protocol.framer import MAX_FRAME_BYTES, Framer, RawFrame
from cometmq.protocol.registry import FAST_DECODERS, decode_fields
from cometmq.speedups import settle_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.protocol.frame import Account
    from cometmq.protocol.headers import Header
    from cometmq.speedups.plain.requests import Waiting

T = TypeVar("T")
H = TypeVar("H")

#: Requests with a header or a body of at least this size are charged to the memory account. Smaller
#: ones are not worth it: each queue in which they wait limits their number.
CHARGED_HEADER_BYTES: Final = 1_024
CHARGED_BODY_BYTES: Final = 4_096
#: A Python string takes four bytes per character if one of its characters needs that many.
_TEXT_FACTOR: Final = 4

_OPAQUE_MASK: Final = 0x7FFFFFFF
_NO_DECODERS: Final[dict[bytes, Callable[[bytes], Request[Any]]]] = {}
_FAST_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _settle(waiting: dict[int, Waiting], data: bytes, at: int) -> tuple[int, int]:
    return settle_plain(data, at, waiting)


#: Functions that settle the responses to plain requests, by the response code.
_SETTLERS: Final = {b"0": _settle}


@dataclass(frozen=True, slots=True)
class Rejected:
    """Event: a request with invalid fields. Respond with the code and remark of ``error``.

    The header of ``request`` has the fields as text, as received.
    """

    request: Request[dict[str, str]]
    error: BadRequest

    @property
    def code(self) -> int:
        """Request code."""
        return self.request.code


class Answered(msgspec.Struct, Generic[T], frozen=True):
    """Event: the response to a request of this side, with the request's token."""

    token: T
    response: Response


Event = Request[Any] | Rejected | Answered[T]


class Connection(Framer, Generic[T]):
    """Protocol state of one connection; ``T`` is the owner's token for a request that it sent.

    Large requests are charged to ``account``. With ``keep_fields``, requests also have their header
    fields as text, which access control needs to check signatures.
    """

    __slots__ = (
        "_account",
        "_keep_fields",
        "_language",
        "_next_opaque",
        "_pending",
        "unknown_responses",
    )

    def __init__(
        self,
        language: Language = Language.PYTHON,
        *,
        account: Account | None = None,
        max_header_bytes: int = MAX_FRAME_BYTES,
        keep_fields: bool = False,
    ) -> None:
        super().__init__(max_header_bytes)
        self._keep_fields = keep_fields
        self._account = account
        self._language = language
        self._next_opaque = 0
        self._pending: dict[int, Waiting] = {}
        self.unknown_responses = 0

    @property
    def in_flight(self) -> int:
        """Number of this side's requests that wait for their response."""
        return len(self._pending)

    def next_events(self, limit: int) -> list[Event[T]]:
        """Return at most ``limit`` events; fewer mean that more bytes are needed.

        Raises RemoteProtocolError when the stream cannot be parsed. Events of frames before the
        invalid one are returned first, by an earlier call.
        """
        if self.broken is not None:
            raise self.broken
        events: list[Event[T]] = []
        append = events.append
        fast = _NO_DECODERS if self._keep_fields else FAST_DECODERS
        for frame in self.take(limit):
            codec, header, body = frame
            if codec == JSON and header[:8] == b'{"code":':
                decode = fast.get(header[8 : header.find(b",", 8, 16)])
                if decode is not None:
                    try:
                        request = decode(header)
                    except _FAST_ERRORS:
                        pass  # the tolerant path below parses it, or reports the error
                    else:
                        if not request.flag & FLAG_RESPONSE:
                            request.body = body
                            request.codec = JSON  # overrides a field of that name in the JSON
                            if (
                                len(header) >= CHARGED_HEADER_BYTES
                                or len(body) >= CHARGED_BODY_BYTES
                            ):
                                self._charge(request, header)
                            append(request)
                            continue
            if not self._add_tolerantly(frame, events):
                break
        return events

    def _add_tolerantly(self, frame: RawFrame, events: list[Event[T]]) -> bool:
        """Append the event of a frame to ``events``, if it has one; return whether to continue.

        If the header cannot be decoded, the stream is broken: raises the error if there are no
        earlier events to return first.
        """
        try:
            event = self._tolerant(frame)
        except RemoteProtocolError as error:
            self.broken = error
            if not events:
                raise
            return False
        if event is not None:
            events.append(event)
        return True

    def _tolerant(self, frame: RawFrame) -> Event[T] | None:
        """Return the event of a frame of any client; None for a response to no waiting request.

        Raises RemoteProtocolError for a header that cannot be decoded.
        """
        codec, header, body = frame
        head = decode_head(codec, header)
        if head.flag & FLAG_RESPONSE:
            known = self._pending.pop(head.opaque, None)
            if known is None:
                # The response to a request that timed out, or to one that was never sent.
                self.unknown_responses += 1
                return None
            response = Response(head.code, head.opaque, head.remark, head.ext, body, head.version)
            return Answered(known[1], response)
        try:
            fields = decode_fields(head.code, head.ext)
        except BadRequest as error:
            # Keep a new error: the traceback of the raised one would form a reference cycle.
            told = BadRequest(error.code, error.remark)
            rejected = request_of(head, head.ext, codec, body)
            rejected.fields = head.ext
            return Rejected(rejected, told)
        request = request_of(head, fields, codec, body)
        if self._keep_fields:
            request.fields = head.ext
        if len(header) >= CHARGED_HEADER_BYTES or len(body) >= CHARGED_BODY_BYTES:
            self._charge(request, header)
        return request

    def _charge(self, request: Request[Any], header: bytes) -> None:
        if self._account is not None:
            size_bytes = len(header) * _TEXT_FACTOR + len(request.body)
            request.charge = self._account.charge(size_bytes)

    def encode_request(
        self,
        code: int,
        header: Header | None,
        token: T,
        deadline_ms: int,
        *,
        body_bytes: int = 0,
        codec: int = JSON,
        extra: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Encode a request and store ``token`` under a new opaque.

        Returns the opaque and the bytes that precede the body of ``body_bytes``. ``extra`` are
        fields in addition to the header's (signatures). If encoding raises, nothing is stored.
        """
        opaque = self.new_opaque()
        head = self._encode(code, header, opaque, 0, body_bytes, codec, extra)
        self._pending[opaque] = (deadline_ms, token)
        return opaque, head

    def encode_oneway(
        self,
        code: int,
        header: Header | None,
        *,
        body_bytes: int = 0,
        codec: int = JSON,
        extra: dict[str, str] | None = None,
    ) -> bytes:
        """Encode a request that has no response; return the bytes that precede its body."""
        opaque = self.new_opaque()
        return self._encode(code, header, opaque, FLAG_ONEWAY, body_bytes, codec, extra)

    def new_opaque(self) -> int:
        """Return an unused opaque for the next request."""
        opaque = self._next_opaque
        while opaque in self._pending:
            opaque = (opaque + 1) & _OPAQUE_MASK
        self._next_opaque = (opaque + 1) & _OPAQUE_MASK
        return opaque

    def expect(self, opaque: int, waiting: Waiting) -> int:
        """Store a plain request; return the number of requests that wait.

        The caller made its frame from constant pieces, with an opaque of :meth:`new_opaque`.
        :meth:`settle_plain` sets its result.
        """
        self._pending[opaque] = waiting
        return len(self._pending)

    def settle_plain(self) -> int:
        """Set the results of waiting plain requests from their responses.

        Returns the number of following frames that are to be taken as events, as
        :meth:`Framer.offer` does.
        """
        return self.offer(_SETTLERS, self._pending)

    def forget(self, opaque: int) -> T | None:
        """Drop a pending request whose caller gave up; its late response is ignored."""
        known = self._pending.pop(opaque, None)
        return None if known is None else known[1]

    def expire(self, now_ms: int) -> list[T]:
        """Remove the requests whose deadline is at or before ``now_ms``; return their tokens."""
        due = [opaque for opaque, known in self._pending.items() if known[0] <= now_ms]
        return [self._pending.pop(opaque)[1] for opaque in due]

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a waiting request; None if none waits."""
        return min((known[0] for known in self._pending.values()), default=None)

    def close(self) -> list[T]:
        """Drop all pending requests of a closed connection; return their tokens."""
        tokens: list[T] = [known[1] for known in self._pending.values()]
        self._pending.clear()
        self.broken = None  # its traceback refers to this object
        return tokens

    def _encode(
        self,
        code: int,
        header: Header | None,
        opaque: int,
        flag: int,
        body_bytes: int,
        codec: int,
        extra: dict[str, str] | None,
    ) -> bytes:
        ext = to_ext(header)
        if extra:
            ext.update(extra)
        return encode_head(
            code=code,
            opaque=opaque,
            flag=flag,
            ext=ext,
            codec=codec,
            body_bytes=body_bytes,
            language=self._language,
        )


def request_of(head: Head, fields: H, codec: int, body: bytes = b"") -> Request[H]:
    """Return the request with a decoded header; ``fields`` are the fields of its code."""
    return Request(
        code=head.code,
        header=fields,
        opaque=head.opaque,
        flag=head.flag,
        version=head.version,
        language=head.language,
        remark=head.remark,
        body=body,
        codec=codec,
    )
