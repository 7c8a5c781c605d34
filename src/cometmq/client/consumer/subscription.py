"""What ``client.subscribe`` gives: messages to iterate over, or a handler to run on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.consumer.push import PushConsumer
from cometmq.client.consumer.received import ReceivedMessage

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.consumer.runs import Rest
    from cometmq.client.hooks import ConsumeHook
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session

#: A handler that waits for nothing would hold the loop as long as messages are at hand.
_MESSAGES_A_TURN: Final = 64

#: A coroutine function; a plain one holds up the loop, so it should not take long.
Handler = Callable[[ReceivedMessage], Awaitable[Any] | None]


class Subscription:
    """A membership in a consumer group. It joins when it is first used.

    Iterate over it (several tasks may share the iteration), or :meth:`run` a handler. At most
    ``concurrency`` messages are in the callers' hands; the next one is given when one of them is
    settled. Offsets are committed up to the oldest message that is not settled. Use it as an async
    context manager, or :meth:`close` it, to leave the group before the client closes.
    """

    def __init__(
        self,
        session: Session,
        producer: Producer,
        options: SubscribeOptions,
        hooks: Sequence[ConsumeHook] = (),
    ) -> None:
        self.options = options
        self.closed = False
        self._session = session
        self._consumer = PushConsumer(session, producer, options, hooks)
        self._in_a_row = 0
        self._has_joined = False
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Subscription:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = self._take_now() or await self._take()
        if message is None:
            raise StopAsyncIteration
        return message

    def _take_now(self) -> ReceivedMessage | None:
        """The next message, unless it has to be waited for, or others need the loop."""
        if self._in_a_row == _MESSAGES_A_TURN:
            return None
        self._in_a_row += 1
        return self._consumer.take_now()

    async def _take(self) -> ReceivedMessage | None:
        """The next message; None when the subscription is closed."""
        await self._rest()
        return await self._consumer.take()

    async def _wait(self) -> bool:
        """Wait until there may be a message; False when the subscription is closed."""
        await self._rest()
        return await self._consumer.wait()

    async def _rest(self) -> None:
        """Let others have the loop, if they need it, and join the group."""
        if self._in_a_row == _MESSAGES_A_TURN:
            self._consumer.wake_other()
            await self._session.clock.sleep_ms(0)
        self._in_a_row = 0
        if not self._has_joined:
            await self.start()

    async def start(self) -> None:
        """Join the group now. Raises ValueError when this client is in it already."""
        if self.closed:
            return
        if self._starting is None:
            name = f"join {self.options.group}"
            self._starting = self._session.tasks.spawn(self._consumer.start(), name=name)
        await asyncio.shield(self._starting)
        self._has_joined = True

    async def run(self, handler: Handler, *, reraise: bool = False) -> None:
        """Call ``handler`` with every message, ``concurrency`` of them at a time, until the
        subscription is closed. A handler that returns acknowledges its message; one that raises
        sends it to be retried. With ``reraise`` its exception ends the run, too."""
        name = f"handler {self.options.group}"
        workers = [
            self._session.tasks.spawn(self._work(handler, reraise), name=f"{name} {number}")
            for number in range(self.options.concurrency)
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, handler: Handler, reraise: bool) -> None:
        # As `async for` and `async with` would, without a coroutine for each of their steps.
        while True:
            stopped = self._run_through(handler)
            message = stopped[0] if stopped else self._take_now()
            if message is None:
                if not await self._wait():
                    return
                continue
            block = message.processing(reraise=reraise)
            block.begin()
            try:
                result = stopped[1] if stopped else handler(message)
                if isinstance(result, BaseException):
                    raise result
                if result is not None:
                    await result
            except BaseException as error:
                # Kept, the error would hold this frame, which holds it.
                stopped = result = None
                if not await block.fail(error):
                    raise
            else:
                block.succeed()

    def _run_through(self, handler: Handler) -> Rest | None:
        """Call ``handler`` with the messages that are at hand, as long as it is done with each at
        once; gives the one with which it was not, and what is left to do for it."""
        while (left := _MESSAGES_A_TURN - self._in_a_row) > 0:
            run = self._consumer.take_run()
            if run is None:
                break
            given, rest = run.work(handler, left)
            self._in_a_row += given
            if rest is not None:
                return rest
        return None

    async def close(self) -> None:
        """Leave the group: give no more messages, wait up to 10 s for those in work, store
        offsets. Iterations and handlers end. Call it outside of ``message.processing()``, whose
        message it would wait for."""
        self.closed = True
        if self._closing is None:
            name = f"leave {self.options.group}"
            self._closing = self._session.tasks.spawn(self._leave(), name=name)
        # Whoever closes it too waits for the same end; a cancelled caller does not stop it.
        await asyncio.shield(self._closing)

    async def _leave(self) -> None:
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        await self._consumer.close()
