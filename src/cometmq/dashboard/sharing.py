"""Results of calls to brokers, shared among all viewers of one account.

A result is kept for a short time, and a call that is in progress is joined instead of repeated.
Thus the load on the brokers does not grow with the number of viewers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.core.errors import CometError

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks

T = TypeVar("T")

#: Results that are kept at one time; the oldest are dropped first.
KEPT_MAX: Final = 4_096
#: Calls at one time, of all pages together; further ones wait.
CALLS_MAX: Final = 16
#: Time for which a result counts as current.
FRESH_MS: Final = 1_500
#: The same for names, settings and members, which seldom change.
NAMES_MS: Final = 5_000


@dataclass(slots=True)
class _Kept:
    #: Monotonic time until which the result counts as current; None while the call runs.
    until_ms: int | None
    call: asyncio.Task[Any]


class SharedCalls:
    """Calls by key. ``tasks`` owns them, so a call outlives the request that started it."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._clock = clock
        self._tasks = tasks
        self._kept: dict[Hashable, _Kept] = {}
        self._gate = asyncio.Semaphore(CALLS_MAX)

    async def get(
        self, key: Hashable, call: Callable[[], Awaitable[T]], *, fresh_ms: int = FRESH_MS
    ) -> T:
        """Return the result of ``call``, or of an earlier call with this key.

        ``fresh_ms`` is the time for which the result may be used again. An error is raised in all
        requests that wait for the call; the next request calls again.
        """
        now_ms = self._clock.monotonic_ms()
        kept = self._kept.get(key)
        # A running call is joined however slow it is: a second one would only add load.
        is_old = kept is not None and kept.until_ms is not None and now_ms >= kept.until_ms
        if kept is None or is_old or _failed(kept.call):
            self._kept.pop(key, None)
            while len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            task = self._tasks.spawn(self._gated(call), name=f"dashboard {key}")
            kept = self._kept[key] = _Kept(None, task)
            task.add_done_callback(partial(self._ended, kept, fresh_ms))
        outcome = await asyncio.shield(kept.call)
        if isinstance(outcome, Exception):
            raise outcome
        found: T = outcome
        return found

    def _ended(self, kept: _Kept, fresh_ms: int, _: asyncio.Task[Any]) -> None:
        kept.until_ms = self._clock.monotonic_ms() + fresh_ms

    def forget(self) -> None:
        """Drop all results, after a change of the cluster."""
        self._kept.clear()

    async def _gated(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a call, or its error: Tasks would log a raised one as a bug."""
        async with self._gate:
            try:
                return await call()
            except (CometError, OSError) as error:
                return error


def _failed(call: asyncio.Task[Any]) -> bool:
    return call.done() and (call.cancelled() or isinstance(call.result(), Exception))
