"""The properties of many messages at once: one regular expression finds a property in all of them.

    FF 02 <properties of a message> 02 FF 02 <properties of the next> 02 ... FF

FF is no part of any UTF-8 text, so it parts messages safely. What is found is what
``message/properties.py`` finds in a single message: of two equal names the last one with a value.

A property text is taken as a string with a character for each byte: to look for a piece in many
short strings costs a third of looking for it in as many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.message.properties import marker

if TYPE_CHECKING:
    from cometmq.message.record import Buffer

#: Numbers of so many digits fit every number type of Java.
FEW_DIGITS = 9

#: A character for each byte.
CODEC: Final = "latin-1"

_END: Final = "\xff"
_PARTING: Final = "\x02\xff\x02"
#: What broken text may hold instead of FF: no text compares equal with either.
_NO_TEXT: Final = "\xfe"
#: Name and value, where the name is one that an expression can name.
_pairs = re.compile(rb"\x02([A-Za-z0-9_$]++)\x01([^\x02\xff]++)").findall


class Batch:
    """The property texts of ``size`` messages in one piece."""

    __slots__ = ("_rows", "joined", "size")

    def __init__(self, joined: bytes, size: int) -> None:
        self.joined = joined
        self.size = size
        self._rows: list[dict[bytes, bytes]] | None = None

    @property
    def rows(self) -> list[dict[bytes, bytes]]:
        """The properties of each message by name. Taken apart once, for whoever asks for many."""
        rows = self._rows
        if rows is None:
            rows = self._rows = [dict(_pairs(each)) for each in self.joined.split(b"\xff")[1:-1]]
        return rows


def texts_of(properties: Iterable[Buffer]) -> list[str]:
    """Property bytes as texts."""
    return [str(each, CODEC) for each in properties]


def join(texts: Sequence[str]) -> Batch:
    """Property texts as a batch."""
    joined = f"\xff\x02{_PARTING.join(texts)}\x02\xff"
    if joined.count(_END) != len(texts) + 1:
        plain = _PARTING.join(text.replace(_END, _NO_TEXT) for text in texts)
        joined = f"\xff\x02{plain}\x02\xff"
    return Batch(joined.encode(CODEC), len(texts))


def column(name: bytes) -> Callable[[Batch], list[bytes]]:
    """A function that gives each message's value of the property; empty where it has none."""
    find_once = _once(name, b"[^\x02\xff]+")
    find_last = re.compile(
        b"\xff(?=\x02)(?:[^\xff]*" + re.escape(marker(name)) + b"([^\x02\xff]+))?"
    ).findall
    return lambda batch: find_once(batch) or find_last(batch.joined)


def row_column(name: bytes) -> Callable[[Batch], list[bytes]]:
    """As :func:`column`, at a cost that does not grow with the size of the texts once they are
    taken apart."""
    return lambda batch: [row.get(name, b"") for row in batch.rows]


def digits_column(name: bytes) -> Callable[[Batch], list[bytes]]:
    """As :func:`column`, for a property that is a number of a few digits; gives nothing when it is
    anything else in one of the messages."""
    return _once(name, b"[0-9]{1,%d}(?=\x02)" % FEW_DIGITS)


def _once(name: bytes, value: bytes) -> Callable[[Batch], list[bytes]]:
    """A property that every message has once, with such a value; nothing when one has not. Half the
    work of a look for the last of equal names at every message."""
    mark = marker(name)
    find = re.compile(re.escape(mark) + b"(" + value + b")[^\xff]*").findall

    def values(batch: Batch) -> list[bytes]:
        joined, size = batch.joined, batch.size
        found = find(joined)
        return found if len(found) == size == joined.count(mark) else []

    return values
