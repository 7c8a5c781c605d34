"""Parsing of plain JSON headers, the form that clients usually write.

A plain header has no whitespace and no repeated names, and its numbers have neither a sign nor
leading zeros. Every other header is odd: its frame is left to the general decoder.

This is the definition; compiled/headers.pxd does the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

LENGTHS: Final = Struct(">II")
#: Maximum number of frames examined in search of a plain one.
ODD_MAX: Final = 32
#: Maximum header size of plain answers and pulls, in bytes.
SHORT_HEADER_MAX_BYTES: Final = 1_023
#: Maximum number of fields in a signed request.
ALL_FIELDS_MAX: Final = 32

#: Kinds of field values: ASCII without escapes; UTF-8 without escapes; UTF-8 with escapes;
#: ``false`` or ``true``; ``false``; a 31-bit number; a 63-bit number.
TEXT, WIDE_TEXT, ESCAPED_TEXT, TRUTH, FALSE, NUMBER, LONG_NUMBER = range(7)
_LIMITS: Final = {NUMBER: 0x7FFFFFFF, LONG_NUMBER: 0x7FFFFFFFFFFFFFFF}
_WORDS: Final = {TRUTH: (b"false", b"true"), FALSE: (b"false",)}

_STRING: Final = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\[\x20-\x7f])*+)"')
_NUMBER: Final = re.compile(rb"(?:0|[1-9][0-9]{0,18})(?![0-9])")
_NUMBERS: Final = (b"code", b"flag", b"opaque", b"version")
_TEXTS: Final = (b"language", b"serializeTypeCurrentRPC", b"remark")


class Odd(Exception):
    """Raised for a frame that is not plain, and so has to be handled individually."""


class Form(NamedTuple):
    """Fields of one kind of header: the kind of each value, by field name.

    The first ``required`` fields are mandatory. Unknown fields are ignored if ``has_others`` is
    true, otherwise they make the header odd.
    """

    fields: Mapping[bytes, int]
    required: int
    has_others: bool = True


class Header(NamedTuple):
    """A parsed header. ``fields`` are the values in the order of their form; a missing one is None.

    ``all_fields`` are all values in the header by name, with escapes not decoded. It is None if a
    name is repeated, or if there are more than ALL_FIELDS_MAX.
    """

    code: int
    flag: int
    opaque: int
    has_remark: bool
    fields: list[Any]
    all_fields: Mapping[bytes, bytes] | None


def read_header(header: bytes, forms: Mapping[int, Form]) -> Header:
    """Parse a plain header; ``forms`` has the form of each code. Raises Odd for any other header.

    The code must precede the fields; the code, the fields and the opaque are required.
    """
    found: dict[bytes, Any] = {}
    at = _expect(header, 0, b"{")
    while True:
        name, at = _string(header, at, TEXT)
        at = _expect(header, at, b":")
        if name in found:
            raise Odd
        if name in _NUMBERS:
            found[name], at = _number(header, at, NUMBER)
            if name == b"code" and found[name] not in forms:
                raise Odd
        elif name == b"extFields" and b"code" in found:
            found[name], at = _read_fields(header, at, forms[found[b"code"]])
        elif name in _TEXTS:
            found[name], at = _string(header, at, TEXT)
        else:
            raise Odd
        if header[at : at + 1] == b"}":
            break
        at = _expect(header, at, b",")
    if at + 1 != len(header) or not found.keys() >= {b"code", b"extFields", b"opaque"}:
        raise Odd
    fields, all_fields = found[b"extFields"]
    return Header(
        found[b"code"], found.get(b"flag", 0), found[b"opaque"], b"remark" in found, fields,
        all_fields,
    )  # fmt: skip


def _read_fields(
    header: bytes, at: int, form: Form
) -> tuple[tuple[list[Any], Mapping[bytes, bytes] | None], int]:
    found: dict[bytes, Any] = {}
    texts: list[tuple[bytes, bytes]] = []
    at = _expect(header, at, b"{")
    while True:
        name, at = _string(header, at, TEXT)
        at = _expect(header, at, b":")
        holds = form.fields.get(name, TEXT)
        text, at = _string(header, at, holds)
        texts.append((name, text))
        if name in form.fields:
            if name in found:
                raise Odd
            found[name] = _value(text, holds)
        elif not form.has_others:
            raise Odd
        if header[at : at + 1] == b"}":
            break
        at = _expect(header, at, b",")
    fields = [found.get(name) for name in form.fields]
    if None in fields[: form.required]:
        raise Odd
    all_fields = dict(texts)
    is_clear = len(all_fields) == len(texts) <= ALL_FIELDS_MAX
    return (fields, all_fields if is_clear else None), at + 1


def _value(text: bytes, holds: int) -> int | bytes:
    if holds in _LIMITS:
        number, end = _number(text, 0, holds)
        if end != len(text):
            raise Odd
        return number
    if text not in _WORDS.get(holds, (text,)):
        raise Odd
    return text


def _expect(header: bytes, at: int, mark: bytes) -> int:
    if header[at : at + 1] != mark:
        raise Odd
    return at + 1


def _string(header: bytes, at: int, holds: int) -> tuple[bytes, int]:
    found = _STRING.match(header, at)
    if found is None:
        raise Odd
    text = found[1]
    if holds != ESCAPED_TEXT and (b"\\" in text or not (holds == WIDE_TEXT or text.isascii())):
        raise Odd
    return text, found.end()


def _number(text: bytes, at: int, holds: int) -> tuple[int, int]:
    found = _NUMBER.match(text, at)
    if found is None or int(found[0]) > _LIMITS[holds]:
        raise Odd
    return int(found[0]), found.end()
