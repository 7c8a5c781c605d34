"""Properties of a message (message/properties.py) that control how it is stored and found.

This is the definition; compiled/properties.pxd does the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PROPERTIES_MAX_BYTES: Final = 32_767


class Named(NamedTuple):
    """Values of UNIQ_KEY, KEYS, TAGS and DELAY; empty if missing.

    If a name occurs several times, its last non-empty value counts.
    """

    unique: bytes
    keys: bytes
    tag: bytes
    delay: bytes


def find_named(properties: bytes) -> Named:
    """Return the values in a property text that control storing and finding the message."""
    unique = keys = tag = delay = b""
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if not value:
            continue
        if name == b"UNIQ_KEY":
            unique = value
        elif name == b"KEYS":
            keys = value
        elif name == b"TAGS":
            tag = value
        elif name == b"DELAY":
            delay = value
    return Named(unique, keys, tag, delay)


def pairs_of(properties: bytes) -> dict[str, str]:
    """Return all pairs that have a name and a value; the last value of a repeated name wins.

    Invalid UTF-8 is replaced before the text is split.
    """
    found: dict[str, str] = {}
    for pair in str(properties, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found


def keys_of(unique: bytes, keys: bytes) -> list[bytes]:
    """Return the index keys of a message: its unique key, and its keys, separated by spaces."""
    found = [unique] if unique else []
    if keys:
        found += [key for key in keys.split(b" ") if key]
    return found
