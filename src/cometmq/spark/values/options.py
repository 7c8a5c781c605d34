"""The options of a read that decodes bodies: the format and the options of that format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.spark.options import BadOption, Given, by_name, get, one_of, required, some_text

#: The options that each format takes besides valueFormat.
_TAKEN: Final = {
    "json": ("valueSchema",),
    "msgpack": ("valueSchema",),
    "avro": ("valueSchema", "valueRegistry", "valueSubject"),
    "protobuf": ("valueDescriptors", "valueMessage"),
}
OPTIONS: Final = (
    *("valueFormat", "valueSchema", "valueRegistry", "valueSubject"),
    *("valueDescriptors", "valueMessage"),
)
ALIASES: Final = {f"value.{name.removeprefix('value').lower()}": name for name in OPTIONS}
_DESCRIPTORS_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """Options for decoding bodies.

    ``schema`` is DDL, or an Avro schema in JSON. ``descriptors`` are the bytes of a
    FileDescriptorSet. The URL of a registry may contain a password.
    """

    format: str
    schema: str = ""
    registry: str = field(default="", repr=False)
    subject: str = ""
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""


def parse(given: Given) -> ValueOptions | None:
    """Parse the options about values; None if bodies are not decoded. Raises BadOption."""
    format = get(given, "valueFormat", one_of(*_TAKEN), "")
    others = [name for name in OPTIONS[1:] if name in given]
    if not format:
        if others:
            raise BadOption(others[0], "needs valueFormat")
        return None
    for name in others:
        if name not in _TAKEN[format]:
            raise BadOption(name, f"does not belong to valueFormat={format}")
    found = ValueOptions(
        format,
        get(given, "valueSchema", some_text, ""),
        get(given, "valueRegistry", some_text, ""),
        get(given, "valueSubject", some_text, ""),
        required(given, "valueDescriptors", _bytes_of) if format == "protobuf" else b"",
        required(given, "valueMessage", some_text) if format == "protobuf" else "",
    )
    if format == "avro" and not found.schema and not (found.registry and found.subject):
        raise BadOption("valueSchema", "is required, or valueRegistry and valueSubject")
    return found


def of_source(options: Mapping[str, str]) -> ValueOptions | None:
    """Parse the options about values from all options of a read. Raises BadOption."""
    own = {name.lower() for name in (*OPTIONS, *ALIASES)}
    given = {name: value for name, value in options.items() if name.lower() in own}
    return parse(by_name(given, OPTIONS, ALIASES))


def _bytes_of(path: str) -> bytes:
    try:
        with Path(path).open("rb") as opened:
            return opened.read(_DESCRIPTORS_BYTES_MAX)
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
