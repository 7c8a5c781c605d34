"""Event loop in its own thread, for programs without one: other threads wait for its results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cometmq.net.runtime import loop_factory

T = TypeVar("T")


class LoopThread:
    """Thread that runs an event loop until it is closed."""

    def __init__(self) -> None:
        self._loop = loop_factory()()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="cometmq client", daemon=True
        )
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; interrupting the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop and wait for its result."""

        async def work() -> T:
            return function()

        return self.wait(work())

    def close(self) -> None:
        """Stop the loop and wait for the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
