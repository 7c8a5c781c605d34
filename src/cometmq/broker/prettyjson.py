"""The text of table files: JSON as fastjson prints it in its pretty form.

Tabs, no blank after a colon, integer keys in one line and without quotes, no nulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

#: Entries whose text is joined, or made, in one piece.
_PIECE_ENTRIES: Final = 64


def pretty(value: object, depth: int = 0) -> bytes:
    """A value as fastjson prints it in its pretty form, ``depth`` tabs in."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return _pretty_map(value, depth)
    if isinstance(value, list | tuple):
        if not value:
            return b"[]"
        inner = b"\n" + b"\t" * (depth + 1)
        parts = (b"," + inner).join([pretty(item, depth + 1) for item in value])
        return b"[" + inner + parts + b"\n" + b"\t" * depth + b"]"
    return msgspec.json.encode(value)


def _pretty_map(value: Mapping[Any, object], depth: int) -> bytes:
    if not value:
        return b"{}"
    end = b"\n" + b"\t" * depth + b"}"
    inner = b"\n" + b"\t" * (depth + 1)
    parts = []
    for key, item in value.items():
        if item is None:
            continue
        if isinstance(key, int):  # integer keys stand in one line, without quotes
            parts.append(b"%d:%b" % (key, pretty(item, depth + 1)))
        else:
            name = msgspec.json.encode(key)
            parts.append(inner + name + b":" + pretty(item, depth + 1))
    return b"{" + b",".join(parts) + end


class EntryTexts:
    """The text of every entry of a table, a map one tab in: made once a change.

    Values are compared by identity; who changes one in place tells it with :meth:`drop`.
    """

    __slots__ = ("_texts",)

    def __init__(self) -> None:
        self._texts: dict[str, tuple[object, bytes]] = {}

    def drop(self, key: str) -> None:
        """The value of ``key`` changed or is gone."""
        self._texts.pop(key, None)

    def pieces(self, entries: Iterable[tuple[str, object]]) -> Iterator[bytes]:
        """The map with its brackets, in pieces that take under a millisecond each."""
        texts = self._texts
        found: list[bytes] = []
        opening = b"{"
        for key, value in entries:
            known = texts.get(key)
            if known is None or known[0] is not value:
                known = texts[key] = value, _entry(key, value)
            found.append(known[1])
            if len(found) == _PIECE_ENTRIES:
                yield opening + b",".join(found)
                opening = b","
                found = []
        if found:
            yield opening + b",".join(found)
            opening = b","
        yield b"{}" if opening == b"{" else b"\n\t}"


def _entry(key: str, value: object) -> bytes:
    if isinstance(value, msgspec.Struct):
        value = dict(sorted(msgspec.to_builtins(value).items()))
    return b"\n\t\t" + msgspec.json.encode(key) + b":" + pretty(value, 2)
