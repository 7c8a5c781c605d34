"""Subscription: the result of ``client.subscribe``; iterates over messages or runs a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.consumer.push import PushConsumer
from cometmq.client.consumer.received import ReceivedMessage

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.consumer.received import Rest
    from cometmq.client.hooks import ConsumeHook
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session

#: Messages delivered before the task yields: a handler that never waits would block the loop.
_MESSAGES_A_TURN: Final = 64

#: A coroutine function, or a plain one, which blocks the loop and should therefore be short.
Handler = Callable[[ReceivedMessage], Awaitable[Any] | None]


class Subscription:
    """Membership in a consumer group. It joins the group when it is first used.

    Iterate over it (several tasks may share the iteration), or :meth:`run` a handler. At most
    ``concurrency`` messages are in progress; when one of them is settled the next one is delivered.
    Offsets are committed up to the oldest message that is not settled. Use it as an async context
    manager, or :meth:`close` it, to leave the group before the client closes.
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
        """Return the next message; None if the task must wait for one, or must yield to others."""
        if self._in_a_row == _MESSAGES_A_TURN:
            return None
        self._in_a_row += 1
        return self._consumer.take_now()

    async def _take(self) -> ReceivedMessage | None:
        """Return the next message; None when the subscription is closed."""
        await self._rest()
        return await self._consumer.take()

    async def _wait(self) -> bool:
        """Wait until there may be a message; return False when the subscription is closed."""
        await self._rest()
        return await self._consumer.wait()

    async def _rest(self) -> None:
        """Yield to other tasks if a full turn was used, and join the group."""
        if self._in_a_row == _MESSAGES_A_TURN:
            self._consumer.wake_other()
            await self._session.clock.sleep_ms(0)
        self._in_a_row = 0
        if not self._has_joined:
            await self.start()

    async def start(self) -> None:
        """Join the group now. Raises ValueError when this client is a member already."""
        if self.closed:
            return
        if self._starting is None:
            name = f"join {self.options.group}"
            self._starting = self._session.tasks.spawn(self._consumer.start(), name=name)
        await asyncio.shield(self._starting)
        self._has_joined = True

    async def run(self, handler: Handler, *, reraise: bool = False) -> None:
        """Call ``handler`` with every message until the subscription is closed.

        Up to ``concurrency`` handlers run at a time. If a handler returns, its message is
        acknowledged. If it raises, the message is retried, and with ``reraise`` the exception also
        ends the run.
        """
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
        # Does the same as `async for` and `async with`, without a coroutine for each of their
        # steps.
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
                # Break the reference cycle: the error refers to this frame, which refers to the
                # error.
                stopped = result = None
                if not await block.fail(error):
                    raise
            else:
                block.succeed()

    def _run_through(self, handler: Handler) -> Rest | None:
        """Call ``handler`` with the available messages, as long as each call completes without
        waiting.

        Returns the message whose call did not complete and the rest of its work, or None.
        """
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
        """Leave the group: stop delivering, wait up to 10 s for messages in progress, store
        offsets.

        Iterations and handlers end. Do not call it inside ``message.processing()``: it would wait
        for that message.
        """
        self.closed = True
        if self._closing is None:
            name = f"leave {self.options.group}"
            self._closing = self._session.tasks.spawn(self._leave(), name=name)
        # Concurrent callers wait for the same task; cancelling one of them does not stop it.
        await asyncio.shield(self._closing)

    async def _leave(self) -> None:
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        await self._consumer.close()
