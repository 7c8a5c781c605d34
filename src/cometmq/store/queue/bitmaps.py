"""Bit maps: which groups' SQL92 filters match a message; part of extension units (extensions.py).

Each group with a filter on a topic has a few positions in the bit map, as in a Bloom filter: groups
may share positions. They are set if the group's filter matches the message (upstream:
CommitLogDispatcherCalcBitMap.java, BitsArray.java). Bit n is bit n % 8 of byte n // 8, counted from
the lowest.

An unset position says that the group's filter does not match. So a topic's messages get no bit map
while one of its filters cannot be evaluated or is not compiled yet, or if all filters together
would take too long. Filters are compiled while messages are dispatched, a few words at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.core.allowance import Allowance
from cometmq.filter.sql92 import BadFilter, SqlFilter
from cometmq.filter.sqltext import parsing_words

if TYPE_CHECKING:
    from cometmq.message.record import Buffer

log = logging.getLogger(__name__)

#: Limit of the parts of all filters of a topic, which are evaluated for each message.
MAX_PARTS: Final = 1_000
#: Words of filters that may be compiled at once, and then per second. A topic with a longer filter
#: gets no bit maps.
WORDS_AT_ONCE: Final = 1_024
WORDS_PER_SECOND: Final = 10_240
#: Time after which a topic tries again to compile its filters.
PAUSE_MS: Final = 100
#: Limit of the memory of compiled filters. Beyond it all are dropped, at most once in KEPT_MS, and
#: compiled again when they are needed.
MAX_COMPILED_BYTES: Final = 32 << 20
KEPT_MS: Final = 60_000
#: Limit of a bit map: a unit has 15 bits for its size.
MAX_BYTES: Final = 32_000


class _Filter(NamedTuple):
    """The filter of a group, and its positions as the bits of ``mask``."""

    sql: SqlFilter
    mask: int


class _Later(Exception):
    """Raised if the filters of a topic must be compiled later, because of the limits above."""


class BitMaps:
    """Calculates bit maps, once :meth:`begin` was called. ``now_ms`` is monotonic time."""

    __slots__ = (
        "_allowed", "_cleared_ms", "_compiled", "_filters", "_parsed", "_parsed_bytes",
        "_paused", "_size_bytes",
    )  # fmt: skip

    def __init__(self, now_ms: int) -> None:
        self._size_bytes = 0
        #: Expression and mask by topic and group. The mask is 0 if the positions do not fit.
        self._filters: dict[str, dict[str, tuple[str, int]]] = {}
        #: Compiled filters by topic; None for a topic whose messages get no bit map.
        self._compiled: dict[str, tuple[_Filter, ...] | None] = {}
        #: By expression: the filter, or why there is none. Parsing takes milliseconds on the loop.
        #: So an expression is parsed once, not again for each change of another group.
        self._parsed: dict[str, SqlFilter | str] = {}
        self._parsed_bytes = 0
        self._allowed = Allowance(WORDS_AT_ONCE, WORDS_PER_SECOND, now_ms)
        #: Time before which a topic does not try again to compile its filters.
        self._paused: dict[str, int] = {}
        self._cleared_ms = now_ms - KEPT_MS

    def begin(self, bits: int) -> None:
        """Calculate bit maps of ``bits`` bits, a multiple of 8, from now on."""
        self._size_bytes = bits // 8 if bits <= 8 * MAX_BYTES else 0
        if not self._size_bytes:
            log.warning("filter_bit_maps_too_long bits=%d limit=%d", bits, 8 * MAX_BYTES)

    def put(self, topic: str, group: str, expression: str, positions: Collection[int]) -> None:
        """Add or replace the filter of a group; ``positions`` are its bits in the bit map."""
        is_fit = all(0 <= each < 8 * self._size_bytes for each in positions)
        mask = sum(1 << each for each in {*positions}) if is_fit else 0
        self._filters.setdefault(topic, {})[group] = expression, mask
        self._compiled.pop(topic, None)

    def drop(self, topic: str, group: str) -> None:
        """Remove the filter of a group, if there is one."""
        groups = self._filters.get(topic, {})
        if groups.pop(group, None) is not None:
            self._compiled.pop(topic, None)
            if not groups:
                del self._filters[topic]
                self._paused.pop(topic, None)

    def wants(self, topic: str, now_ms: int) -> bool:
        """Return whether the messages of a topic get a bit map now.

        Compiles the topic's filters first, if the limits permit it.
        """
        if not self._size_bytes or topic not in self._filters:
            return False
        if topic not in self._compiled:
            if now_ms < self._paused.get(topic, now_ms):
                return False
            try:
                self._compiled[topic] = self._compile(topic, now_ms)
            except _Later:
                self._paused[topic] = now_ms + PAUSE_MS
                return False
            self._paused.pop(topic, None)
        return self._compiled[topic] is not None

    def of(self, topic: str, properties: Buffer) -> bytes:
        """Return the bit map of a message with these properties; call it after :meth:`wants`."""
        found = 0
        for sql, mask in self._compiled[topic] or ():
            if sql.accepts(properties):
                found |= mask
        return found.to_bytes(self._size_bytes, "little")

    def _compile(self, topic: str, now_ms: int) -> tuple[_Filter, ...] | None:
        filters = self._filters[topic].items()
        if any(expression not in self._parsed for _, (expression, _) in filters):
            self._make_room(now_ms)
        parts = 0
        found: list[_Filter] = []
        for group, (expression, mask) in filters:
            sql = self._parsed.get(expression) or self._parse(expression, now_ms)
            if isinstance(sql, str):
                log.warning("no_filter_bit_maps topic=%s group=%s reason=%s", topic, group, sql)
                return None
            parts += sql.weight
            if parts > MAX_PARTS:
                log.warning(
                    "no_filter_bit_maps topic=%s reason=%r",
                    topic, f"its filters have more than {MAX_PARTS} parts together",
                )  # fmt: skip
                return None
            if mask:
                found.append(_Filter(sql, mask))
        return tuple(found)

    def _make_room(self, now_ms: int) -> None:
        """Drop the compiled filters if they take too much memory.

        Raises _Later if they were dropped less than KEPT_MS ago.
        """
        if self._parsed_bytes > MAX_COMPILED_BYTES:
            if now_ms < self._cleared_ms + KEPT_MS:
                raise _Later
            self._compiled.clear()
            self._parsed.clear()
            self._parsed_bytes, self._cleared_ms = 0, now_ms

    def _parse(self, expression: str, now_ms: int) -> SqlFilter | str:
        """Return the compiled filter, or why there is none. Raises _Later."""
        words = parsing_words(expression)
        found: SqlFilter | str = f"the filter has more than {WORDS_AT_ONCE} words"
        if words <= WORDS_AT_ONCE:
            if not self._allowed.take(words, now_ms):
                raise _Later
            try:
                found = SqlFilter(expression)
            except BadFilter as error:
                found = str(error)
        self._parsed[expression] = found
        self._parsed_bytes += len(expression) if isinstance(found, str) else found.size_bytes
        return found
