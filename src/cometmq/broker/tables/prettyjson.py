"""The text of table files: JSON as fastjson prints it in its pretty form.

Tabs, no blank after a colon, integer keys in one line and without quotes, no nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

#: Entries whose text is encoded and cached together.
_BLOCK_ENTRIES: Final = 16
_PLAIN: Final = (str, int, float)


def pretty(value: object, depth: int = 0) -> bytes:
    """Encode a value as fastjson prints it in its pretty form, indented by ``depth`` tabs."""
    if isinstance(value, _PLAIN):  # the most frequent case
        return msgspec.json.encode(value)
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, (dict, Mapping)):
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
        if isinstance(key, int):  # fastjson prints integer keys in one line, without quotes
            parts.append(b"%d:%b" % (key, pretty(item, depth + 1)))
        else:
            name = msgspec.json.encode(key)
            parts.append(inner + name + b":" + pretty(item, depth + 1))
    return b"{" + b",".join(parts) + end


@dataclass(slots=True, eq=False)
class _Block:
    """A run of consecutive entries, and their cached text: None if it has to be encoded again."""

    entries: dict[str, object] = field(default_factory=dict)
    text: bytes | None = None
    changes: int = 0


class EntryTexts:
    """Text of a table's entries: a map that is indented by one tab and keeps insertion order.

    The text is cached in blocks of a few entries. A change discards the text of one block only, and
    a large table is joined from few pieces.
    """

    __slots__ = ("_block_of", "_blocks")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._block_of: dict[str, _Block] = {}

    def put(self, key: str, value: object) -> None:
        """Set the value of ``key``; call it again after the value was changed in place."""
        block = self._block_of.get(key)
        if block is None:
            if not self._blocks or len(self._blocks[-1].entries) >= _BLOCK_ENTRIES:
                self._blocks.append(_Block())
            block = self._block_of[key] = self._blocks[-1]
        block.entries[key] = value
        block.text = None
        block.changes += 1

    def drop(self, key: str) -> None:
        """Remove ``key``; do nothing if it is not there."""
        block = self._block_of.pop(key, None)
        if block is None:
            return
        del block.entries[key]
        block.text = None
        block.changes += 1
        if not block.entries:
            self._blocks.remove(block)

    def pieces(self) -> Iterator[bytes]:
        """Yield the current map with its brackets, in pieces that take under a millisecond each."""
        blocks = [
            (block, block.changes, block.text or list(block.entries.items()))
            for block in self._blocks
        ]
        return _text_of(blocks)


def _text_of(blocks: list[tuple[_Block, int, bytes | list[tuple[str, object]]]]) -> Iterator[bytes]:
    opening = b"{"
    for block, changes, found in blocks:
        if isinstance(found, bytes):
            text = found
        else:
            text = b",".join([_entry(key, value) for key, value in found])
            # Between two pieces the loop runs other code, which may have changed the block.
            if block.changes == changes:
                block.text = text
        yield opening + text
        opening = b","
    yield b"\n\t}" if blocks else b"{}"


def _entry(key: str, value: object) -> bytes:
    if isinstance(value, msgspec.Struct):
        value = dict(sorted(msgspec.to_builtins(value).items()))
    return b"\n\t\t" + msgspec.json.encode(key) + b":" + pretty(value, 2)
