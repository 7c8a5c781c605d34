"""Consumers for programs without an event loop: facades of the asyncio consumers.

Arguments, return values and errors are documented at the asyncio classes only; see blocking.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from cometmq.client import pull as pulls
from cometmq.client.consumer import messageview, polling, received, subscription

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.client.loopthread import LoopThread
    from cometmq.message.model import MessageQueue, StoredMessage

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")


class _Facade(Generic[Inner]):
    """Facade of an asyncio object that lives on the loop of a thread."""

    def __init__(self, thread: LoopThread, inner: Inner) -> None:
        self._thread = thread
        self._inner = inner


def _waiting(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Facade[Inner], P], T]:
    """Wrap a coroutine method so that a call waits for its result."""

    @functools.wraps(method)
    def call(self: _Facade[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.wait(method(self._inner, *args, **kwargs))

    return call


def _calling(
    method: Callable[Concatenate[Inner, P], T],
) -> Callable[Concatenate[_Facade[Inner], P], T]:
    """Wrap a plain method so that it runs on the event loop, which owns the state it reads."""

    @functools.wraps(method)
    def call(self: _Facade[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(lambda: method(self._inner, *args, **kwargs))

    return call


class ReceivedMessage(messageview.MessageView):
    """One message of a subscription; see the asyncio client's class."""

    __slots__ = ("_message", "_thread")

    def __init__(self, thread: LoopThread, message: received.ReceivedMessage) -> None:
        super().__init__(message.stored)
        self._thread = thread
        self._message = message

    def processing(self, *, reraise: bool = False) -> Processing:
        """Return a block that settles the message when it ends: ``with message.processing():``.

        A block that ends normally acknowledges the message. An Exception in the block is logged and
        the message is retried; the exception is raised again only with ``reraise``.
        """
        return Processing(self, self._thread, self._message.processing(reraise=reraise))

    def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        self._thread.call(self._message.ack)

    def retry(self, delay_level: int = 0, *, pause_ms: int = 0) -> None:
        """Have the message delivered again later."""
        self._thread.wait(self._message.retry(delay_level, pause_ms=pause_ms))


class Processing:
    """Block in which a message is processed; see ReceivedMessage.processing."""

    __slots__ = ("_block", "_message", "_thread")

    def __init__(
        self, message: ReceivedMessage, thread: LoopThread, block: received.Processing
    ) -> None:
        self._message = message
        self._thread = thread
        self._block = block

    def __enter__(self) -> ReceivedMessage:
        self._thread.wait(self._block.__aenter__())
        return self._message

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self._thread.wait(self._block.__aexit__(kind, error, traceback))


class Subscription(_Facade[subscription.Subscription]):
    """Membership in a consumer group; see the asyncio client's class."""

    def __enter__(self) -> Subscription:
        self._thread.wait(self._inner.start())
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        message = self._thread.wait(self._take())
        if message is None:
            raise StopIteration
        return ReceivedMessage(self._thread, message)

    async def _take(self) -> received.ReceivedMessage | None:
        return await anext(self._inner, None)

    def run(self, handler: Callable[[ReceivedMessage], Any], *, reraise: bool = False) -> None:
        """Call ``handler`` with every message until the subscription is closed.

        ``concurrency`` threads call it. The subscription is closed by another thread, or by an
        interrupt of this one. With ``reraise`` the first exception of a handler closes it and is
        raised here.
        """
        raised: list[Exception] = []
        arguments = (handler, raised if reraise else None)
        workers = [
            threading.Thread(target=self._work, args=arguments, name=f"cometmq handler {number}")
            for number in range(self._inner.options.concurrency)
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException:
            self.close()
            raise
        if raised:
            raise raised[0]

    def _work(
        self, handler: Callable[[ReceivedMessage], Any], raised: list[Exception] | None
    ) -> None:
        """Process messages in one thread; append a handler's exception to ``raised`` if that is a
        list.
        """
        for message in self:
            try:
                with message.processing(reraise=raised is not None):
                    handler(message)
            except Exception as error:
                if raised is None:
                    raise
                raised.append(error)
                self.close()

    def close(self) -> None:
        """Leave the group; iterations and handlers end."""
        self._thread.wait(self._inner.close())


class PullConsumer(_Facade[polling.PullConsumer]):
    """Polling consumer; see the asyncio client's class."""

    def __enter__(self) -> PullConsumer:
        self._thread.wait(self._inner.start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.wait(self._inner.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[messageview.MessageView]:
        """Yield messages one by one until the consumer is closed.

        A message counts as processed when the next one is requested.
        """
        while not self._inner.closed:
            yield from self.poll(max_messages=1)

    start = _waiting(polling.PullConsumer.start)
    close = _waiting(polling.PullConsumer.close)
    poll = _waiting(polling.PullConsumer.poll)
    assign = _waiting(polling.PullConsumer.assign)
    seek = _waiting(polling.PullConsumer.seek)
    seek_to_begin = _waiting(polling.PullConsumer.seek_to_begin)
    seek_to_end = _waiting(polling.PullConsumer.seek_to_end)
    seek_to_time = _waiting(polling.PullConsumer.seek_to_time)
    offset_for_time = _waiting(polling.PullConsumer.offset_for_time)
    committed = _waiting(polling.PullConsumer.committed)
    commit = _waiting(polling.PullConsumer.commit)
    assignment = _calling(polling.PullConsumer.assignment)
    pause = _calling(polling.PullConsumer.pause)
    resume = _calling(polling.PullConsumer.resume)
    paused = _calling(polling.PullConsumer.paused)
    position = _calling(polling.PullConsumer.position)


class Puller(_Facade[pulls.Puller]):
    """Reader of queues at explicit offsets; see the asyncio client's class."""

    pull = _waiting(pulls.Puller.pull)
    max_offset = _waiting(pulls.Puller.max_offset)
    min_offset = _waiting(pulls.Puller.min_offset)
    search_offset = _waiting(pulls.Puller.search_offset)
    offset_at = _waiting(pulls.Puller.offset_at)
    earliest_store_ms = _waiting(pulls.Puller.earliest_store_ms)

    def read_range(
        self, queue: MessageQueue, start: int, end: int, **options: Any
    ) -> Iterator[list[StoredMessage]]:
        """Yield the messages of ``queue`` with ``start <= offset < end``, in order.

        Each list is the result of one pull. Options and errors are the asyncio client's.
        """
        parts = self._inner.read_range(queue, start, end, **options)

        async def take() -> list[StoredMessage] | None:
            return await anext(parts, None)

        try:
            while (part := self._thread.wait(take())) is not None:
                yield part
        finally:
            self._thread.wait(_closing(parts))


async def _closing(parts: Any) -> None:
    await parts.aclose()
