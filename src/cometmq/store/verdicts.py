"""Which messages of queues match, as far as somebody looked: for whoever wants the same of them.

Groups with one expression, consumers that all get everything, and those that read again ask the
same of the same messages, which never change. Kept in pages of 256 messages of a queue, a byte for
each that matches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cometmq.store.consumequeue import ConsumeQueue

PAGE_ENTRIES: Final = 256
#: At most about 8 MiB, for four million messages.
_MAX_PAGES: Final = 16_384
#: Of so many matchers at once: what is known of one keeps it in memory.
_MAX_MATCHERS: Final = 256


class _Page(NamedTuple):
    """What is known of the entries from ``low`` up to ``high`` of a page: those that match."""

    low: int
    high: int
    matching: bytes


class Verdicts:
    """Of all queues. ``matcher`` stands for what is wanted, by its identity."""

    def __init__(self, max_pages: int = _MAX_PAGES, max_matchers: int = _MAX_MATCHERS) -> None:
        self._max_matchers = max_matchers
        #: How many pages there are of each matcher.
        self._pages_of: dict[object, int] = {}
        self._pages: OrderedDict[tuple[ConsumeQueue, int, object, int], _Page] = OrderedDict()
        self._max_pages = max_pages

    def put(
        self,
        queue: ConsumeQueue,
        matcher: object,
        offset: int,
        size: int,
        numbers: Sequence[int],
    ) -> None:
        """Take note of which of ``size`` messages from a queue offset on match, by their numbers
        from there on, upwards."""
        pages = self._pages
        done = 0
        while done < size:
            page, low = divmod(offset + done, PAGE_ENTRIES)
            high = min(low + size - done, PAGE_ENTRIES)
            shift = low - done
            inside = numbers[bisect_left(numbers, done) : bisect_left(numbers, high - shift)]
            matching = bytes([number + shift for number in inside] if shift else inside)
            key = queue, queue.restarts, matcher, page
            known = pages.pop(key, None)
            done += high - low
            if known is not None and known.low <= low <= known.high:
                more = matching[bisect_left(matching, known.high) :]
                low, high = known.low, max(high, known.high)
                matching = known.matching + more
            pages[key] = _Page(low, high, matching)
            if known is None:
                self._pages_of[matcher] = self._pages_of.get(matcher, 0) + 1
        while len(pages) > self._max_pages or len(self._pages_of) > self._max_matchers:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        (_, _, matcher, _), _ = self._pages.popitem(last=False)
        left = self._pages_of[matcher] - 1
        if left:
            self._pages_of[matcher] = left
        else:
            del self._pages_of[matcher]

    def find(
        self, queue: ConsumeQueue, matcher: object, offset: int
    ) -> tuple[int, list[int]] | None:
        """Of how many messages from a queue offset on it is known, and which of them match, counted
        from there; None when it is not known of the first."""
        number, low = divmod(offset, PAGE_ENTRIES)
        key = queue, queue.restarts, matcher, number
        page = self._pages.get(key)
        if page is None or not page.low <= low < page.high:
            return None
        self._pages.move_to_end(key)
        matching = page.matching
        return page.high - low, [at - low for at in matching[bisect_left(matching, low) :]]
