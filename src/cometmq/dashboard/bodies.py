"""Message bodies as text, in each format that their bytes match. Pure, without schemas.

A body may be hostile, so the work for each format is bounded: in the bytes that it reads (64 KiB),
in its levels (DEPTH_MAX), and in the values or lines that it returns (LINES_MAX).

    gzip         1f 8b, then deflate; unpacked up to 64 KiB
    confluent    00, schema id (4 bytes, big endian), payload; for Protobuf an index before it
    messagepack  exactly one map or array
    protobuf     fields up to the end: tag (number << 3 | wire type), value. The content of a
                 length-delimited field is guessed: text, otherwise a message, otherwise bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Final

from cometmq.dashboard import shown

DEPTH_MAX: Final = 32
LINES_MAX: Final = 10_000
_GZIP: Final = b"\x1f\x8b"
#: ``wbits`` of zlib for a gzip header and the largest window.
_GZIP_WINDOW: Final = 31
_HEX_BYTES_MAX: Final = 64
_NOT_SHOWN: Final = "…"


class _NotThis(Exception):
    """The bytes are not of this form."""


def forms_of(body: bytes) -> dict[str, str | None]:
    """Return a body by format, the most specific first; None for a format that does not match.

    A body that is printable text is not tried as a binary format.
    """
    is_text = _printable(body[: shown.TEXT_BYTES_MAX]) is not None
    found: dict[str, str | None] = {"json": shown.body_json(body)}
    found |= {name: None if is_text else make(body) for name, make in _FORMS.items()}
    return found | {"text": shown.body_text(body), "hex": shown.body_hex(body)}


def gzip(body: bytes) -> str | None:
    """Return the content of a gzip file as text, up to 64 KiB of it; None if the body is none."""
    if not body.startswith(_GZIP):
        return None
    try:
        content = zlib.decompressobj(_GZIP_WINDOW).decompress(body, shown.TEXT_BYTES_MAX + 1)
    except zlib.error:
        return None
    text = _best(content[: shown.TEXT_BYTES_MAX])
    return f"{text}\n{_NOT_SHOWN}" if len(content) > shown.TEXT_BYTES_MAX else text


def confluent(body: bytes) -> str | None:
    """Return schema id and payload of a body from Confluent's serializers; None if it is none."""
    if len(body) < 6 or body[0] != 0:
        return None
    payload = body[5 : 5 + shown.TEXT_BYTES_MAX]
    lines = [f"schema id {int.from_bytes(body[1:5], 'big')}, payload of {len(body) - 5:,} bytes:"]
    # With Protobuf, an index precedes the payload: 0 for the first message type of the schema.
    fields = protobuf(payload[1:]) if payload[0] == 0 else None
    return "\n".join([*lines, fields or _best(payload)])


def messagepack(body: bytes) -> str | None:
    """Return a map or array of MessagePack as indented JSON; None if the body is none."""
    kind = body[:1]
    if len(body) > shown.TEXT_BYTES_MAX or not (b"\x80" <= kind <= b"\x9f" or kind in _CONTAINERS):
        return None
    reader = _MessagePack(body)
    try:
        value = reader.value(0)
        if reader.at != len(body):
            return None
        text = json.dumps(value, indent=2, ensure_ascii=False)
        text.encode()
    except (_NotThis, ValueError):
        return None
    return text if len(text) <= shown.JSON_CHARACTERS_MAX else None


def protobuf(body: bytes) -> str | None:
    """Return the fields of a message of Protobuf by number; None if the body is none."""
    if not body or len(body) > shown.TEXT_BYTES_MAX:
        return None
    try:
        lines = _fields(body, 0)
    except _NotThis:
        return None
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], _NOT_SHOWN]
    text = "\n".join(lines)
    return text if len(text) <= shown.JSON_CHARACTERS_MAX else None


_FORMS: Final[Mapping[str, Callable[[bytes], str | None]]] = {
    "gzip": gzip, "confluent": confluent, "messagepack": messagepack, "protobuf": protobuf,
}  # fmt: skip
_CONTAINERS: Final = (b"\xdc", b"\xdd", b"\xde", b"\xdf")


def _best(content: bytes) -> str:
    """Return content in the first format that it matches, or as a hex dump."""
    text = shown.body_json(content) or _printable(content)
    return text or messagepack(content) or protobuf(content) or shown.body_hex(content)


def _printable(content: bytes) -> str | None:
    """Return content as text; None if it is not UTF-8, or has control characters."""
    text = shown.body_text(content)
    if text is None:
        # The limit may have cut the last character, of at most four bytes.
        try:
            text = content[:-3].decode() if len(content) >= shown.TEXT_BYTES_MAX else None
        except UnicodeDecodeError:
            return None
    if text is None or any(ord(each) < 32 and each not in "\t\n\r" for each in text):
        return None
    return text


class _MessagePack:
    """A reader of consecutive values; ``at`` is the position after the last one."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = LINES_MAX
        self.at = 0

    def value(self, depth: int) -> object:
        """Decode the next value, which is ``depth`` levels deep. Raises _NotThis."""
        self._left -= 1
        if depth > DEPTH_MAX or self._left < 0:
            raise _NotThis
        kind = self._number(1)
        if kind <= 0x7F:
            return kind
        if kind <= 0x8F:
            return self._map(kind & 0x0F, depth)
        if kind <= 0x9F:
            return self._array(kind & 0x0F, depth)
        if kind <= 0xBF:
            return self._text(kind & 0x1F)
        if kind >= 0xE0:
            return kind - 0x100
        return self._long(kind, depth)

    def _long(self, kind: int, depth: int) -> object:
        """Decode a value whose first byte is only its type; shorter ones hold a length too."""
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            layout = struct.Struct(_NUMBERS[kind])
            return layout.unpack(self._take(layout.size))[0]
        if kind in _LENGTHS:
            size_bytes, form = _LENGTHS[kind]
            return self._sized(form, self._number(size_bytes), depth)
        if 0xD4 <= kind <= 0xD8:
            return self._extension(1 << (kind - 0xD4))
        raise _NotThis

    def _sized(self, form: str, count: int, depth: int) -> object:
        if form == "map":
            return self._map(count, depth)
        if form == "array":
            return self._array(count, depth)
        if form == "text":
            return self._text(count)
        return self._extension(count) if form == "extension" else _hex(self._take(count))

    def _map(self, count: int, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            name = key if isinstance(key, str) else json.dumps(key)
            found[name] = self.value(depth + 1)
        return found

    def _array(self, count: int, depth: int) -> list[object]:
        return [self.value(depth + 1) for _ in range(count)]

    def _text(self, size_bytes: int) -> str:
        try:
            return self._take(size_bytes).decode()
        except UnicodeDecodeError:
            raise _NotThis from None

    def _extension(self, size_bytes: int) -> str:
        kind = int.from_bytes(self._take(1), "big", signed=True)
        return f"extension {kind}: {_hex(self._take(size_bytes))}"

    def _number(self, size_bytes: int) -> int:
        return int.from_bytes(self._take(size_bytes), "big")

    def _take(self, size_bytes: int) -> bytes:
        end = self.at + size_bytes
        if end > len(self._body):
            raise _NotThis
        taken = self._body[self.at : end]
        self.at = end
        return taken


_CONSTANTS: Final[Mapping[int, bool | None]] = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
#: By type: the number of bytes of its length field, and the form of the value after that field.
_LENGTHS: Final = {
    0xC4: (1, "bytes"), 0xC5: (2, "bytes"), 0xC6: (4, "bytes"),
    0xC7: (1, "extension"), 0xC8: (2, "extension"), 0xC9: (4, "extension"),
    0xD9: (1, "text"), 0xDA: (2, "text"), 0xDB: (4, "text"),
    0xDC: (2, "array"), 0xDD: (4, "array"), 0xDE: (2, "map"), 0xDF: (4, "map"),
}  # fmt: skip


def _fields(body: bytes, depth: int) -> list[str]:
    """Return the lines of a Protobuf message, one or more per field. Raises _NotThis.

    Reads each byte at most once per level.
    """
    if depth > DEPTH_MAX:
        raise _NotThis
    indent, lines, at = "  " * depth, [], 0
    while at < len(body):
        tag, at = _varint(body, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise _NotThis
        if kind == 0:
            value, at = _varint(body, at)
            lines.append(f"{indent}{number}: {value}")
        elif kind == 2:
            size_bytes, at = _varint(body, at)
            part, at = _part(body, at, size_bytes)
            lines += _guessed(part, f"{indent}{number}", depth)
        elif kind in (1, 5):
            part, at = _part(body, at, 8 if kind == 1 else 4)
            real = struct.unpack("<d" if kind == 1 else "<f", part)[0]
            lines.append(f"{indent}{number}: {int.from_bytes(part, 'little')} or {real:g}")
        else:
            raise _NotThis
    return lines


def _guessed(part: bytes, name: str, depth: int) -> list[str]:
    """Return the lines of a length-delimited field: text, a nested message, or bytes."""
    text = _printable(part)
    if text is not None:
        return [f"{name}: {json.dumps(text, ensure_ascii=False)}"]
    try:
        return [f"{name} {{", *_fields(part, depth + 1), "  " * depth + "}"]
    except _NotThis:
        return [f"{name}: {_hex(part)}"]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if at + index >= len(body):
            raise _NotThis
        byte = body[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (1 << 64) - 1, at + index + 1
    raise _NotThis


def _part(body: bytes, at: int, size_bytes: int) -> tuple[bytes, int]:
    if at + size_bytes > len(body):
        raise _NotThis
    return body[at : at + size_bytes], at + size_bytes


def _hex(part: bytes) -> str:
    more = f" {_NOT_SHOWN} {len(part):,} bytes" if len(part) > _HEX_BYTES_MAX else ""
    return (part[:_HEX_BYTES_MAX].hex(" ") or "0 bytes") + more
