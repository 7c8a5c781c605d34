"""What is read of the properties of a message (message/properties.py): by what it is found.

This is the definition; compiled/properties.pxd does the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PROPERTIES_MAX_BYTES: Final = 32_767


class Named(NamedTuple):
    """Values of properties: of each the last that is not empty."""

    unique: bytes
    keys: bytes
    tag: bytes
    delay: bytes


def find_named(properties: bytes) -> Named:
    """What properties say."""
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
    """All pairs with a name and a value; of equal names the last one's value. What is no UTF-8 is
    replaced first."""
    found: dict[str, str] = {}
    for pair in str(properties, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found


def keys_of(unique: bytes, keys: bytes) -> list[bytes]:
    """What a message is found by: its unique key and its keys."""
    found = [unique] if unique else []
    if keys:
        found += [key for key in keys.split(b" ") if key]
    return found
