"""Requests, responses, replies of handlers, and encoding and decoding of headers in both codecs.

JSON header (codec 0): an object with ``code``, ``language``, ``version``, ``opaque``, ``flag``,
``remark`` (omitted when null) and ``extFields`` (string to string).

Binary header (codec 1, upstream: RocketMQSerializable.java):

    offset  size  field
    0       2     code (signed; larger codes cannot be carried)
    2       1     language
    3       2     version
    5       4     opaque
    9       4     flag: bit 0 response, bit 1 one-way
    13      4     remark length R, then R bytes of UTF-8
    17+R    4     length of the entries, then {key length i16, key, value length i32, value}

A header is decoded once, into the struct of its code if the registry has one. Headers that the fast
path rejects (numbers for strings, "+5", "", null) are parsed by :mod:`cometmq.protocol.fields`.

The memory of a large request is charged to the connection that it came from. The charge is given
back when the last reference to it is dropped, so code that keeps a request need not count it.

Most responses are encoded as a whole. Responses to plain sends and pulls differ only in a few
values, so the constant pieces around these values are encoded once. They are cut from the output of
the same encoder, so all responses have the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct as Packer
from struct import error as StructError
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct, field

from cometmq.core.errors import LocalProtocolError, RemoteProtocolError
from cometmq.protocol.codes import OUR_VERSION, Language, ResponseCode
from cometmq.protocol.fields import Int32, stringify, to_ext
from cometmq.protocol.headers import Header

H = TypeVar("H")

#: Names of languages by number. Every header has one, and a lookup in an enumeration is slower.
_LANGUAGES: Final = tuple(language.name for language in sorted(Language))

JSON: Final = 0
BINARY: Final = 1

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

_LENGTHS: Final = Packer(">II")
_FIXED: Final = Packer(">hBhiii")
_I32: Final = Packer(">i")
_I16: Final = Packer(">h")
_NAME_MAX_BYTES: Final = 0x7FFF


class Account(Protocol):
    """Account of a connection, to which the bytes that it holds in memory are charged."""

    def charge(self, size_bytes: int) -> Charge:
        """Count bytes until the charge is given back."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """Give back bytes of a charge. Any thread may call it."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """True if all connections together hold as much memory as the process may use for them."""
        ...


class Charge:
    """Bytes on an account, given back once: by a call, or when the last reference is dropped."""

    __slots__ = ("account", "size_bytes")

    def __init__(self, account: Account, size_bytes: int) -> None:
        self.account = account
        self.size_bytes = size_bytes

    def give_back(self, size_bytes: int | None = None) -> None:
        """Give back ``size_bytes`` of the charge, or all that is left if it is None."""
        given = self.size_bytes if size_bytes is None else min(size_bytes, self.size_bytes)
        self.size_bytes -= given
        if given:
            self.account.give_back(given)

    def __del__(self) -> None:
        if self.size_bytes:
            self.account.give_back(self.size_bytes)
            self.size_bytes = 0


class Request(
    Struct,
    Generic[H],
    gc=False,
    rename={"header": "extFields", "body": "-body", "charge": "-charge", "fields": "-fields"},
):
    """One received request.

    ``header`` is the struct of its code, or a dict for codes that the registry lacks. ``codec`` is
    used for the response too. ``charge`` accounts for the memory of a large request. ``fields`` are
    the header fields as received, if the connection keeps them for access control.

    The struct is decoded from the JSON header. ``body``, ``charge`` and ``fields`` are not part of
    it: their wire names begin with a hyphen, so that no peer can set them.
    """

    code: Int32
    header: H
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0
    language: str | int = "OTHER"
    remark: str | None = None
    body: bytes = b""
    codec: int = JSON
    charge: Charge | None = None
    fields: dict[str, str] | None = None

    def drop_body(self) -> None:
        """Release the memory of the body. Call it for a request that waits without needing it."""
        if self.charge is not None:
            self.charge.give_back(len(self.body))
        self.body = b""

    @property
    def oneway(self) -> bool:
        """True when the peer expects no response."""
        return self.flag & FLAG_ONEWAY != 0


class Response(Struct, gc=False):
    """One received response; ``ext`` has its fields as text."""

    code: int
    opaque: int
    remark: str | None
    ext: dict[str, str]
    body: bytes
    version: int = 0


class Reply(Struct, frozen=True):
    """Result of a handler, from which the response is encoded.

    ``ext`` has the fields of a response for which there is no ``header`` struct.
    """

    code: int = ResponseCode.SUCCESS
    header: Header | None = None
    body: bytes = b""
    remark: str | None = None
    ext: dict[str, str] | None = None


class RawHead(Struct, rename={"ext": "extFields"}):
    """JSON header as tolerant decoding reads it; fields may be numbers or booleans."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str | int | None = None
    remark: str | None = None
    ext: dict[str, object] | None = None


_raw_decoder: Final = msgspec.json.Decoder(RawHead, strict=False)
_encode_json: Final = msgspec.json.Encoder().encode


class Head(Struct, gc=False, rename={"ext": "extFields"}):
    """Decoded header of either codec, with its fields as text."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str = "OTHER"
    remark: str | None = None
    ext: dict[str, str] = field(default_factory=dict)


_strict_decoder: Final = msgspec.json.Decoder(Head)


def decode_head(codec: int, header: bytes) -> Head:
    """Decode a header of either codec, in any form that clients send.

    Raises RemoteProtocolError for an unknown codec, and if the bytes are not a header.
    """
    if codec == JSON:
        return _decode_json(header)
    if codec == BINARY:
        return _decode_binary(header)
    raise RemoteProtocolError(f"header codec {codec} is neither 0 (JSON) nor 1 (ROCKETMQ)")


def _decode_json(header: bytes) -> Head:
    try:
        head = _strict_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_json_tolerantly(header)
    if not head.remark:
        head.remark = None
    return head


def _decode_json_tolerantly(header: bytes) -> Head:
    # The second attempt: strict decoding suffices for most clients and takes a third of the time.
    try:
        raw = _raw_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"JSON header cannot be read: {error}") from None
    ext = {key: stringify(value) for key, value in (raw.ext or {}).items() if value is not None}
    language = _language_name(raw.language)
    return Head(raw.code, raw.opaque, raw.flag, raw.version, language, raw.remark or None, ext)


def _language_name(language: str | int | None) -> str:
    if isinstance(language, int):
        return _LANGUAGES[language] if 0 <= language < len(_LANGUAGES) else "OTHER"
    return language or "OTHER"


def _decode_binary(header: bytes) -> Head:
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark, at = _text(header, at, remark_bytes)
        (entries_bytes,) = _I32.unpack_from(header, at)
        at += 4
        end = at + entries_bytes
        if entries_bytes < 0 or end > len(header):
            raise RemoteProtocolError(f"binary header: entries of {entries_bytes} bytes")
        ext: dict[str, str] = {}
        while at < end:
            (key_bytes,) = _I16.unpack_from(header, at)
            key, at = _text(header, at + 2, key_bytes)
            (value_bytes,) = _I32.unpack_from(header, at)
            value, at = _text(header, at + 4, value_bytes)
            if key is not None and value is not None:
                ext[key] = value
    except (ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"binary header cannot be read: {error}") from None
    except StructError:
        raise RemoteProtocolError("binary header ends too early") from None
    return Head(code, opaque, flag, version, _language_name(language), remark, ext)


def _text(header: bytes, at: int, size: int) -> tuple[str | None, int]:
    """Return the text at a position, None if it is empty, and the position after it."""
    end = at + size
    if size < 0 or end > len(header):
        raise RemoteProtocolError(f"binary header: text of {size} bytes at {at} leaves the header")
    return (header[at:end].decode() if size else None), end


class _JsonHead(
    Struct,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    rename={"ext": "extFields", "codec": "serializeTypeCurrentRPC"},
):
    """JSON header; its fields are in the order in which they are written."""

    code: int
    ext: Mapping[str, str] | None = None
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    codec: str
    version: int


def encode_head(
    *,
    code: int,
    opaque: int,
    flag: int,
    ext: Mapping[str, str],
    remark: str | None = None,
    codec: int = JSON,
    body_bytes: int = 0,
    version: int = OUR_VERSION,
    language: Language = Language.PYTHON,
) -> bytes:
    """Return the length fields and the header of a frame, to be followed by its body.

    Raises LocalProtocolError when the binary codec cannot carry the code or a field's name.
    """
    if codec == BINARY:
        header = _encode_binary(code, opaque, flag, ext, remark, version, language)
    else:
        header = _encode_json(
            _JsonHead(
                code=code,
                ext=ext if ext or flag & FLAG_RESPONSE else None,
                flag=flag,
                language=_LANGUAGES[language],
                opaque=opaque,
                remark=remark,
                codec="JSON",
                version=version,
            )
        )
    return lengths(len(header), body_bytes, codec) + header


def head_pieces(
    code: int,
    ext: Mapping[str, str],
    language: Language,
    names: Sequence[str],
    *,
    flag: int = 0,
    remark: str | None = None,
) -> tuple[bytes, ...]:
    """Return the constant pieces of a JSON header without length fields, for values between them.

    The values are those of the fields ``names``, in that order, and then the opaque. ``ext`` must
    have these fields in the same order; their values in it are ignored.
    """
    ext = {name: "" if name in names else value for name, value in ext.items()}
    head = encode_head(code=code, opaque=0, flag=flag, ext=ext, remark=remark, language=language)
    rest = head[_LENGTHS.size :]
    pieces: list[bytes] = []
    # A mark contains quotation marks, which JSON escapes in strings, so no value contains a mark.
    for mark in (*[b'"%b":"' % name.encode() for name in names], b'"opaque":'):
        before, found, rest = rest.partition(mark)
        pieces.append(before + found)
    return (*pieces, rest.removeprefix(b"0"))


def lengths(header_bytes: int, body_bytes: int = 0, codec: int = JSON) -> bytes:
    """Return the length fields with which a frame begins."""
    return _LENGTHS.pack(4 + header_bytes + body_bytes, codec << 24 | header_bytes)


def _encode_binary(
    code: int,
    opaque: int,
    flag: int,
    ext: Mapping[str, str],
    remark: str | None,
    version: int,
    language: Language,
) -> bytes:
    if not -0x8000 <= code < 0x8000:
        raise LocalProtocolError(f"code {code} does not fit the binary header: use JSON")
    remark_bytes = remark.encode() if remark else b""
    parts = [b""]
    for key, value in ext.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > _NAME_MAX_BYTES:
            raise LocalProtocolError(
                f"a field's name of {len(key_bytes)} bytes does not fit the binary header: use JSON"
            )
        parts += (_I16.pack(len(key_bytes)), key_bytes, _I32.pack(len(value_bytes)), value_bytes)
    entries = b"".join(parts)
    return b"".join(
        (
            _FIXED.pack(code, language, version, opaque, flag, len(remark_bytes)),
            remark_bytes,
            _I32.pack(len(entries)),
            entries,
        )
    )


_SEND_FIELDS: Final = ("msgId", "queueId", "queueOffset")
_PULL_FIELDS: Final = ("maxOffset", "minOffset", "nextBeginOffset", "suggestWhichBrokerId")


def _pieces(
    code: int, fields: dict[str, str], names: tuple[str, ...], remark: str | None = None
) -> tuple[bytes, ...]:
    return head_pieces(
        code, fields, Language.PYTHON, names, flag=FLAG_RESPONSE, remark=remark
    )  # fmt: skip


#: Pieces before and after the opaque of the most frequent response: SUCCESS, no fields, no body.
DONE_HEAD, _DONE_TAIL = _pieces(ResponseCode.SUCCESS, {}, ())


def encode_done(opaque: int) -> bytes:
    """Return the whole frame of a JSON response with SUCCESS, without fields and body."""
    head = b"%b%d%b" % (DONE_HEAD, opaque, _DONE_TAIL)
    return lengths(len(head)) + head


def send_pieces(region: str, trace_on: bool) -> tuple[bytes, ...]:
    """Return the pieces of a response header for a stored send.

    The values between them are the message id, the queue id, the queue offset and the opaque.
    """
    fields = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
    return _pieces(
        ResponseCode.SUCCESS, fields | dict.fromkeys(_SEND_FIELDS, ""), _SEND_FIELDS
    )  # fmt: skip


@cache
def pull_pieces(code: int, remark: str) -> tuple[bytes, ...]:
    """Return the pieces of a response header for a pull.

    The values between them are the maximum offset, the minimum offset, the next offset, the
    suggested broker id and the opaque.
    """
    return _pieces(code, dict.fromkeys(_PULL_FIELDS, ""), _PULL_FIELDS, remark)


def encode_response(
    request: Request[Any],
    code: int,
    *,
    header: Header | None = None,
    ext: dict[str, str] | None = None,
    remark: str | None = None,
    body_bytes: int = 0,
) -> bytes:
    """Return the length fields and the header of a response, in the request's codec.

    The fields are those of ``header``, or ``ext`` if it is given. A body of ``body_bytes`` must
    follow.
    """
    is_empty = header is None and not ext and remark is None and not body_bytes
    if is_empty and not code and request.codec == JSON:
        return encode_done(request.opaque)
    return encode_head(
        code=code,
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        ext=to_ext(header) if ext is None else ext,
        remark=remark,
        codec=request.codec,
        body_bytes=body_bytes,
    )
