"""Blocking facade of the asyncio client: the same names, and every call waits for its result.

One thread runs an event loop with the asyncio client on it; any number of other threads may use the
facade. Arguments, return values and errors are documented at the asyncio client only:
:func:`_waiting` passes its signatures on to type checkers and ``help()``. ::

    with cometmq.client.blocking.Client("127.0.0.1:9876") as client:
        client.send("regions", b"...", tag="update")
        for message in client.subscribe("regions", group="social"):
            with message.processing():
                ...
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cometmq.client import client as asynchronous
from cometmq.client.blockingconsumers import PullConsumer, Puller, ReceivedMessage, Subscription
from cometmq.client.loopthread import LoopThread

__all__ = ["Client", "PullConsumer", "Puller", "ReceivedMessage", "Subscription", "Transaction"]

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.client import transactions
    from cometmq.client.config import ClientConfig
    from cometmq.client.consumer import polling, subscription
    from cometmq.client.results import SendResult

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M")


class Transaction:
    """Transactional message around a ``with`` block; see the asyncio client's class."""

    __slots__ = ("_inner", "_thread")

    def __init__(self, thread: LoopThread, inner: transactions.Transaction) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def result(self) -> SendResult:
        """Location of the stored half message. Raises RuntimeError before it is stored."""
        return self._inner.result

    @property
    def message_id(self) -> str:
        """Unique key of the message, by which a checker can find the work of the block."""
        return self._inner.message_id

    def leave_open(self) -> None:
        """End the block without commit or rollback; the broker then asks the group's checker."""
        self._inner.leave_open()

    def __enter__(self) -> Transaction:
        self._thread.wait(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.wait(self._inner.__aexit__(kind, error, traceback))


def _waiting(
    method: Callable[Concatenate[asynchronous.Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Wrap a coroutine method of the asyncio client so that a call waits for its result.

    Iterators among the arguments are read in the caller's thread, because many belong to it, such
    as the rows of a database cursor.
    """

    start: Callable[..., Coroutine[Any, Any, T]] = method

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        named = {name: _read(value) for name, value in kwargs.items()}
        return self._running().wait(start(self.inner, *map(_read, args), **named))

    return call


def _read(argument: object) -> object:
    return list(argument) if isinstance(argument, Iterator) else argument


def _subscribing(
    method: Callable[Concatenate[asynchronous.Client, P], subscription.Subscription],
) -> Callable[Concatenate[Client, P], Subscription]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Subscription:
        return Subscription(self._running(), method(self.inner, *args, **kwargs))

    return call


def _polling(
    method: Callable[Concatenate[asynchronous.Client, P], polling.PullConsumer],
) -> Callable[Concatenate[Client, P], PullConsumer]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> PullConsumer:
        thread = self._running()
        return PullConsumer(thread, method(self.inner, *args, **kwargs))

    return call


def _transacting(
    method: Callable[Concatenate[asynchronous.Client, P], transactions.Transaction],
) -> Callable[Concatenate[Client, P], Transaction]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Transaction:
        return Transaction(self._running(), method(self.inner, *args, **kwargs))

    return call


def _deciding(
    method: Callable[
        Concatenate[asynchronous.Client, P],
        Callable[[Callable[[M], Awaitable[T]]], Callable[[M], Awaitable[T]]],
    ],
) -> Callable[Concatenate[Client, P], Callable[[Callable[[M], T]], Callable[[M], T]]]:
    """Wrap a method that returns a decorator.

    The decorated function is a plain function here. It runs in a worker thread.
    """

    @functools.wraps(method)
    def call(
        self: Client, /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[Callable[[M], T]], Callable[[M], T]]:
        async def make() -> Callable[[Callable[[M], Awaitable[T]]], object]:
            return method(self.inner, *args, **kwargs)

        decorate = self.wait(make())

        def register(function: Callable[[M], T]) -> Callable[[M], T]:
            async def in_thread(message: M) -> T:
                return await asyncio.to_thread(function, message)

            async def add() -> None:
                decorate(in_thread)

            self.wait(add())
            return function

        return register

    return call


class Client:
    """RocketMQ client for blocking programs; arguments and errors are the asyncio client's."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = (),
        *,
        config: ClientConfig | None = None,
        **settings: Any,
    ) -> None:
        self._inner = asynchronous.Client(name_servers, config=config, **settings)
        self._thread: LoopThread | None = None

    def __enter__(self) -> Client:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Open the client."""
        if self._thread is None:
            self._thread = LoopThread()
            self._thread.wait(self._inner.start())

    def close(self) -> None:
        """Leave all groups, close all connections and end the thread."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                thread.wait(self._inner.close())
            finally:
                thread.close()

    @property
    def inner(self) -> asynchronous.Client:
        """The asyncio client; run its coroutines with :meth:`wait`."""
        return self._inner

    @property
    def puller(self) -> Puller:
        """Reader of queues at explicit offsets, without a consumer group.

        Raises RuntimeError when the client is not open.
        """
        return Puller(self._running(), self._inner.puller)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop, such as one of the admin operations.

        Raises RuntimeError when the client is not open.
        """
        try:
            thread = self._running()
        except RuntimeError:
            work.close()
            raise
        return thread.wait(work)

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError("the client is not open: use `with Client(...)`, or start()")
        return self._thread

    send = _waiting(asynchronous.Client.send)
    recall = _waiting(asynchronous.Client.recall)
    send_oneway = _waiting(asynchronous.Client.send_oneway)
    send_batch = _waiting(asynchronous.Client.send_batch)
    send_many = _waiting(asynchronous.Client.send_many)
    queues = _waiting(asynchronous.Client.queues)
    subscribe = _subscribing(asynchronous.Client.subscribe)
    pull_consumer = _polling(asynchronous.Client.pull_consumer)
    transaction = _transacting(asynchronous.Client.transaction)
    transaction_checker = _deciding(asynchronous.Client.transaction_checker)
    request = _waiting(asynchronous.Client.request)
    replier = _deciding(asynchronous.Client.replier)
