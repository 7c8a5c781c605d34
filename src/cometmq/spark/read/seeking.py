"""Search for a moment in many queues at once, as generators that do no I/O themselves.

Brokers of 4.x return only an approximate offset, so each result is refined by looking at messages
around it. All queues advance together, with one exchange per step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

K = TypeVar("K")

Search = Generator[int, int, int]
"""Yields offsets to look at, receives their store times (ms), and returns the offset searched
for."""


def first_at_or_after(low: int, high: int, hint: int, moment_ms: int) -> Search:
    """Search the first offset in ``low..high`` whose store time is ``moment_ms`` or later. Return
    ``high`` if all are earlier.

    Store times of ``low <= offset < high`` must not decrease. ``hint`` is a guess: the search
    gallops away from it, so a good one takes three looks.
    """
    before, after = low - 1, high  # before is too early, after is not
    step = 1
    at = min(max(hint, low), high - 1)
    while after - before > 1:
        if (yield at) < moment_ms:
            before = at
            at = at + step
        else:
            after = at
            at = at - step
        step *= 2
        if not before < at < after:
            at = (before + after) // 2
    return after


def together(
    searches: Mapping[K, Search], look: Callable[[Mapping[K, int]], Mapping[K, int]]
) -> dict[K, int]:
    """Run searches side by side and return their results. ``look`` returns the store time of one
    offset per search."""
    found: dict[K, int] = {}
    wanted: dict[K, int] = {}

    def step(key: K, told_ms: int | None) -> None:
        try:
            search = searches[key]
            wanted[key] = next(search) if told_ms is None else search.send(told_ms)
        except StopIteration as end:
            found[key] = end.value

    for key in searches:
        step(key, None)
    while wanted:
        asked, wanted = wanted, {}
        for key, store_ms in look(asked).items():
            step(key, store_ms)
    return found
