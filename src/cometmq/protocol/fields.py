"""Conversion of header fields between text and typed structs. ``ext`` are the text fields of a
frame (``extFields``).

On the wire every field should be text, but clients differ:

    Java, Go, C++   strings; C++ sends "" for missing values
    ali-ons         JSON numbers and booleans

A struct declares its fields as :data:`Int32`, :data:`Int64`, ``str`` or :data:`Flag`.
:func:`from_ext` parses the fields of any client. :func:`to_ext` writes only strings, because Go
accepts nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Final, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, structs

from cometmq.core.errors import BadRequest, LocalProtocolError

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, title="int32")]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, title="int64")]
#: A boolean as any client sends it; evaluate it with :func:`truth`. Only JSON true and "true", in
#: upper or lower case, mean true: the C++ client sends "1" for messages that are not batches.
Flag = str | bool | int | None

S = TypeVar("S", bound=Struct)

_BAD_FIELD: Final = 1  # ResponseCode.SYSTEM_ERROR, as upstream answers a header it cannot decode
#: A whole number as Java parses it. One of more digits would be out of bounds anyway.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_INT_BOUNDS: Final = {"int32": 2**31, "int64": 2**63}


def truth(value: Flag) -> bool:
    """Return whether a boolean field is true, in any client's form."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def stringify(value: object) -> str:
    """Return the text that a Java client would have sent for a JSON value."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def to_ext(header: Struct | None) -> dict[str, str]:
    """Return the fields of a header as wire text; absent (None) fields are omitted.

    Raises LocalProtocolError, naming the field, for a value that is not text, integer or boolean.
    """
    if header is None:
        return {}
    ext: dict[str, str] = {}
    for name, value in zip(_wire_names(type(header)), structs.astuple(header), strict=True):
        if type(value) is str:
            ext[name] = value
        elif type(value) is int:
            ext[name] = str(value)
        elif isinstance(value, str | int):  # enumerations and booleans
            ext[name] = stringify(value)
        elif value is not None:
            raise LocalProtocolError(
                f"header field {name} is {type(value).__name__}: use text or a whole number"
            )
    return ext


def from_ext(cls: type[S], ext: Mapping[str, str]) -> S:
    """Parse a header from text fields. An empty text counts as absent, except in text fields.

    Raises BadRequest, naming the field, for one that is missing or invalid.
    """
    values: dict[str, str | int | None] = {}
    for name, wire_name, convert, required in _readers(cls):
        text = ext.get(wire_name)
        if text is None or (text == "" and convert is not None):
            if required:
                raise BadRequest(_BAD_FIELD, f"header field {wire_name} is missing: send it")
            continue
        try:
            values[name] = text if convert is None else convert(text)
        except ValueError as error:
            raise BadRequest(_BAD_FIELD, f"header field {wire_name}: {error}") from None
    return cls(**values)


@cache
def _wire_names(cls: type[Struct]) -> tuple[str, ...]:
    return tuple(info.encode_name for info in structs.fields(cls))


#: How to read one field: attribute name, wire name, conversion (None for text), whether required.
_Reader = tuple[str, str, Callable[[str], int] | None, bool]


@cache
def _readers(cls: type[Struct]) -> tuple[_Reader, ...]:
    return tuple(
        (
            info.name,
            info.encode_name,
            _converter(info.type),
            info.default is NODEFAULT and info.default_factory is NODEFAULT,
        )
        for info in structs.fields(cls)
    )


def _converter(hint: object) -> Callable[[str], int] | None:
    """Return the text-to-int conversion of a field's type; None for text and flags."""
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Annotated:
            meta = get_args(part)[1]
            return _int_reader(_INT_BOUNDS[meta.title])
    return None


@cache
def _int_reader(bound: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if _WHOLE_NUMBER.fullmatch(text) is None:
            raise ValueError(f"{text[:40]!r} is not a whole number")
        value = int(text)
        if not -bound <= value < bound:
            raise ValueError(f"{value} does not fit {'32' if bound == 2**31 else '64'} bits")
        return value

    return read
