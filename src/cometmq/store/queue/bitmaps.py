"""Bit maps of the SQL92 filters that match a message, for its unit (extensions.py).

Each group with a filter of the topic has a few positions in the bit map, some of which may be those
of other groups too. They are set if the group's filter matches the message (upstream:
CommitLogDispatcherCalcBitMap.java, BitsArray.java). Bit n is bit n % 8 of byte n // 8, counted from
the lowest.

Unset positions say that the group's filter does not match. So the messages of a topic get no bit
map as long as one of its filters cannot be evaluated, or all together would take too long.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.filter.sql92 import BadFilter, SqlFilter

if TYPE_CHECKING:
    from cometmq.message.record import Buffer

log = logging.getLogger(__name__)

#: Parts of all filters of a topic: they are evaluated for each message.
MAX_PARTS: Final = 1_000
#: Memory of compiled filters. Beyond that all are compiled again when they are needed.
MAX_COMPILED_BYTES: Final = 32 << 20
#: A unit says its size in 15 bits.
MAX_BYTES: Final = 32_000


class _Filter(NamedTuple):
    """The filter of a group, and its positions as bits of a number."""

    sql: SqlFilter
    mask: int


class BitMaps:
    """Calculates bit maps, once :meth:`begin` was called."""

    __slots__ = ("_compiled", "_filters", "_parsed", "_parsed_bytes", "_size_bytes")

    def __init__(self) -> None:
        self._size_bytes = 0
        self._filters: dict[str, dict[str, tuple[str, Collection[int]]]] = {}
        #: By topic; None for a topic whose messages get no bit map.
        self._compiled: dict[str, tuple[_Filter, ...] | None] = {}
        #: By expression. Parsing takes milliseconds on the loop, and the allowance of new
        #: expressions (broker/pull/newtexts.py) counts each once. So it is parsed once, not again
        #: for each change of another group.
        self._parsed: dict[str, SqlFilter] = {}
        self._parsed_bytes = 0

    def begin(self, bits: int) -> None:
        """Calculate bit maps of ``bits`` bits, a multiple of 8, from now on."""
        self._size_bytes = bits // 8 if bits <= 8 * MAX_BYTES else 0
        if not self._size_bytes:
            log.warning("filter_bit_maps_too_long bits=%d limit=%d", bits, 8 * MAX_BYTES)

    def put(self, topic: str, group: str, expression: str, positions: Collection[int]) -> None:
        """Add the filter of a group, or replace it."""
        self._filters.setdefault(topic, {})[group] = expression, positions
        self._compiled.pop(topic, None)

    def drop(self, topic: str, group: str) -> None:
        """Remove the filter of a group, if there is one."""
        groups = self._filters.get(topic, {})
        if groups.pop(group, None) is not None:
            self._compiled.pop(topic, None)
            if not groups:
                del self._filters[topic]

    def wants(self, topic: str) -> bool:
        """Return whether the messages of a topic get a bit map."""
        if not self._size_bytes or topic not in self._filters:
            return False
        if topic not in self._compiled:
            self._compiled[topic] = self._compile(topic)
        return self._compiled[topic] is not None

    def of(self, topic: str, properties: Buffer) -> bytes:
        """Return the bit map of a message with these properties; :meth:`wants` said True."""
        found = 0
        for sql, mask in self._compiled[topic] or ():
            if sql.accepts(properties):
                found |= mask
        return found.to_bytes(self._size_bytes, "little")

    def _compile(self, topic: str) -> tuple[_Filter, ...] | None:
        if self._parsed_bytes > MAX_COMPILED_BYTES:
            self._compiled.clear()
            self._parsed.clear()
            self._parsed_bytes = 0
        parts = 0
        found: list[_Filter] = []
        for group, (expression, positions) in self._filters[topic].items():
            try:
                sql = self._filter(expression)
            except BadFilter as error:
                log.warning("no_filter_bit_maps topic=%s group=%s reason=%s", topic, group, error)
                return None
            parts += sql.weight
            if parts > MAX_PARTS:
                log.warning(
                    "no_filter_bit_maps topic=%s reason=%r",
                    topic, f"its filters have more than {MAX_PARTS} parts together",
                )  # fmt: skip
                return None
            if all(0 <= each < 8 * self._size_bytes for each in positions):
                found.append(_Filter(sql, sum(1 << each for each in {*positions})))
        return tuple(found)

    def _filter(self, expression: str) -> SqlFilter:
        found = self._parsed.get(expression)
        if found is None:
            found = self._parsed[expression] = SqlFilter(expression)
            self._parsed_bytes += found.size_bytes
        return found
