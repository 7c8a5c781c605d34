"""Blocking facade of the asyncio client and its consumers. It has the same names, and every call
waits for its result.

One thread runs an event loop with the asyncio client on it (:class:`LoopThread`). Any number of
other threads may use the facade. Arguments, return values and errors are documented only at the
asyncio classes; :func:`_waiting` passes their signatures on to type checkers and ``help()``. ::

    with cometmq.client.blocking.Client("127.0.0.1:9876") as client:
        client.send("regions", b"...", tag="update")
        for message in client.subscribe("regions", group="social"):
            with message.processing():
                ...
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, Token, copy_context
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
)

from cometmq.client import client as asynchronous
from cometmq.client import pull as pulls
from cometmq.client import transactions
from cometmq.client.arguments import check_function
from cometmq.client.consumer import (
    pullconsumer,
    pushconsumer,
    received,
)
from cometmq.core.clock import SystemClock
from cometmq.core.errors import NotOpen, UndecodableMessage
from cometmq.message.model import Message, MessageView
from cometmq.net.eventloop import loop_factory

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.client import typed
    from cometmq.client.arguments import Key
    from cometmq.client.config import ClientConfig
    from cometmq.client.consumer.options import Allocation, Mode, Sql, Start
    from cometmq.client.sendrequests import SendResult
    from cometmq.client.serializers import (
        Content,
        Delayed,
        PromptKeywords,
        SendKeywords,
        Serializer,
        TypedBody,
    )
    from cometmq.client.status import ClientStatus
    from cometmq.message.model import MessageQueue, StoredMessage

__all__ = ["Client", "PullConsumer", "Puller", "ReceivedMessage", "Subscription", "Transaction"]


T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)

#: Treatment of a message that cannot be decoded; see typed.py.
OnUndecodable = (
    Literal["retry", "dead_letter"] | Callable[["ReceivedMessage", UndecodableMessage], Any]
)


#: Time for which the end of a thread waits for the tasks on its loop.
_END_S: Final = 5.0
#: Turns of the loop after the last task, in which callbacks run.
_LAST_TURNS: Final = 5
_CLOCK: Final = SystemClock()
#: Maximum number of threads for repliers and transaction checkers; created when needed.
_FUNCTION_THREADS: Final = 256


class LoopThread:
    """Thread that runs an event loop until it is closed.

    A call raises NotOpen if the thread is closed before or during it. So does a call in the thread
    itself, which cannot wait for its own loop, and in a process that was forked later, which does
    not have the thread.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may call while its thread holds the lock.
        self._calling = threading.RLock()
        self._is_closed = False
        self._pid = os.getpid()
        self._loop = loop_factory()()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="cometmq client", daemon=True
        )
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt cancels it."""
        try:
            with self._calling:
                self._check(waits=True)
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except NotOpen:
            work.close()
            raise
        try:
            return future.result()
        except futures.CancelledError:
            if not self._is_closed:
                raise
            raise NotOpen("the client was closed before this call ended") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop and wait for its result."""

        async def work() -> T:
            return function()

        return self.wait(work())

    def soon(self, function: Callable[[], object]) -> None:
        """Schedule a plain function on the loop, and do not wait for it."""
        with self._calling:
            self._check(waits=False)
            self._loop.call_soon_threadsafe(function)

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked after the thread began."""
        return self._pid == os.getpid()

    def _check(self, *, waits: bool) -> None:
        if not self.is_of_this_process:
            raise NotOpen(
                f"the client was opened by process {self._pid}, and this one was forked later: "
                "open a client after the fork"
            )
        if self._is_closed:
            raise NotOpen("the client is closed")
        if waits and threading.current_thread() is self._thread:
            raise NotOpen(
                "hooks and other functions that the client calls run in the thread of its event "
                "loop, and cannot wait for it: hand the call to another thread"
            )

    def close(self) -> None:
        """Cancel the running tasks, and end loop and thread. Waiting calls raise NotOpen."""
        with self._calling:
            if self._is_closed:
                return
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        try:
            ending.result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            _, stuck = await asyncio.wait(running, timeout=_END_S)
            for task in stuck:
                log.error("task_does_not_end name=%s", task.get_name())
        await self._loop.shutdown_asyncgens()
        for _ in range(_LAST_TURNS):
            await _CLOCK.sleep_ms(0)


P = ParamSpec("P")
Inner = TypeVar("Inner")


class _Facade(Generic[Inner]):
    """Facade of an asyncio object that lives on the loop of a thread."""

    __slots__ = ("_inner", "_thread")

    def __init__(self, thread: LoopThread, inner: Inner) -> None:
        self._thread = thread
        self._inner = inner


def _facade_call(
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
    """Wrap a plain method so that it runs on the event loop, whose state it reads."""

    @functools.wraps(method)
    def call(self: _Facade[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(lambda: method(self._inner, *args, **kwargs))

    return call


class ReceivedMessage(MessageView):
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


class Processing(_Facade[received.Processing]):
    """Block in which a message is processed; see ReceivedMessage.processing.

    If hooks set context variables when the processing begins, the block sees these values.
    """

    __slots__ = ("_message", "_set")

    def __init__(
        self, message: ReceivedMessage, thread: LoopThread, inner: received.Processing
    ) -> None:
        super().__init__(thread, inner)
        self._message = message
        self._set: list[tuple[ContextVar[Any], Token[Any]]] = []

    def __enter__(self) -> ReceivedMessage:
        changed = self._thread.wait(self._begin())
        self._set = [(variable, variable.set(value)) for variable, value in changed]
        return self._message

    async def _begin(self) -> list[tuple[ContextVar[Any], Any]]:
        """Enter the block on the loop; return the context variables that hooks have set."""
        before = copy_context()
        await self._inner.__aenter__()
        after = copy_context()
        return [
            (variable, value)
            for variable, value in after.items()
            if variable not in before or before[variable] is not value
        ]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        for variable, token in reversed(self._set):
            variable.reset(token)
        return self._thread.wait(self._inner.__aexit__(kind, error, traceback))


class Subscription(_Facade[pushconsumer.Subscription]):
    """Membership in a consumer group; see the asyncio client's class."""

    def __enter__(self) -> Subscription:
        self._thread.wait(self._inner.start())
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            message = self._thread.wait(self._take())
        except NotOpen:
            if not self._inner.closed:
                raise
            message = None
        if message is None:
            raise StopIteration
        return ReceivedMessage(self._thread, message)

    async def _take(self) -> received.ReceivedMessage | None:
        return await anext(self._inner, None)

    def run(self, handler: Callable[[ReceivedMessage], Any], *, reraise: bool = False) -> None:
        """Call ``handler`` with every message until the subscription is closed.

        ``concurrency`` threads call it. Another thread, or an interrupt of this one, closes the
        subscription. Raises an error that ends the subscription, such as BrokerRefused, and with
        ``reraise`` the first exception of a handler.
        """
        check_function("handler", handler)
        raised: list[BaseException] = []
        arguments = (handler, raised, reraise)
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
        self,
        handler: Callable[[ReceivedMessage], Any],
        raised: list[BaseException],
        reraise: bool,
    ) -> None:
        """Process messages in one thread; append the exception that ends it to ``raised``."""
        try:
            for message in self:
                with message.processing(reraise=reraise):
                    handler(message)
        except BaseException as error:
            raised.append(error)
            with suppress(NotOpen):
                self.close()

    def close(self, timeout_ms: int = pushconsumer.DRAIN_MS) -> int:
        """Leave the group; iterations and handlers end. See the asyncio Subscription."""
        return self._thread.wait(self._inner.close(timeout_ms))


class PullConsumer(_Facade[pullconsumer.PullConsumer]):
    """Polling consumer; see the asyncio client's class."""

    def __enter__(self) -> PullConsumer:
        self._thread.wait(self._inner.start())
        return self

    __exit__ = _facade_call(pullconsumer.PullConsumer.__aexit__)

    def __iter__(self) -> Iterator[MessageView]:
        """Yield messages one by one until the consumer is closed.

        A message counts as processed when the next one is requested.
        """
        while not self._inner.closed:
            yield from self.poll(max_messages=1)

    start = _facade_call(pullconsumer.PullConsumer.start)
    close = _facade_call(pullconsumer.PullConsumer.close)
    poll = _facade_call(pullconsumer.PullConsumer.poll)
    status = _calling(pullconsumer.PullConsumer.status)
    assign = _facade_call(pullconsumer.PullConsumer.assign)
    seek = _facade_call(pullconsumer.PullConsumer.seek)
    seek_to_begin = _facade_call(pullconsumer.PullConsumer.seek_to_begin)
    seek_to_end = _facade_call(pullconsumer.PullConsumer.seek_to_end)
    seek_to_time = _facade_call(pullconsumer.PullConsumer.seek_to_time)
    offset_for_time = _facade_call(pullconsumer.PullConsumer.offset_for_time)
    committed = _facade_call(pullconsumer.PullConsumer.committed)
    commit = _facade_call(pullconsumer.PullConsumer.commit)
    assignment = _calling(pullconsumer.PullConsumer.assignment)
    pause = _calling(pullconsumer.PullConsumer.pause)
    resume = _calling(pullconsumer.PullConsumer.resume)
    paused = _calling(pullconsumer.PullConsumer.paused)
    position = _calling(pullconsumer.PullConsumer.position)


class Puller(_Facade[pulls.Puller]):
    """Reader of queues at explicit offsets; see the asyncio client's class."""

    pull = _facade_call(pulls.Puller.pull)
    max_offset = _facade_call(pulls.Puller.max_offset)
    min_offset = _facade_call(pulls.Puller.min_offset)
    search_offset = _facade_call(pulls.Puller.search_offset)
    offset_at = _facade_call(pulls.Puller.offset_at)
    earliest_store_ms = _facade_call(pulls.Puller.earliest_store_ms)

    def read_range(
        self, queue: MessageQueue, start: int, end: int, **options: Any
    ) -> Iterator[list[StoredMessage]]:
        """Yield the messages of ``queue`` with ``start <= offset < end``, in order.

        Each list is the result of one pull. Options and errors are those of the asyncio Puller.
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


M = TypeVar("M")


class Transaction(_Facade[transactions.Transaction]):
    """Transactional message around a ``with`` block; see the asyncio client's class."""

    __slots__ = ()

    @property
    def result(self) -> SendResult:
        """Location of the stored half message. Raises RuntimeError before it is stored."""
        return self._inner.result

    @property
    def message_id(self) -> str:
        """Unique key of the message, by which a checker can look up the outcome of the block."""
        return self._inner.message_id

    def leave_open(self) -> None:
        """End the block without commit or rollback; the broker then asks the group's checker."""
        self._inner.leave_open()

    def __enter__(self) -> Transaction:
        self._thread.wait(self._inner.__aenter__())
        return self

    __exit__ = _facade_call(transactions.Transaction.__aexit__)


def _waiting(
    method: Callable[Concatenate[asynchronous.Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Wrap a coroutine method of the asyncio client so that a call waits for its result.

    Iterators among the arguments are read in the caller's thread, because some, such as the rows of
    a database cursor, may be used only there.
    """

    start: Callable[..., Coroutine[Any, Any, T]] = method

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        named = {name: _read(value) for name, value in kwargs.items()}
        return self._running().wait(start(self.inner, *map(_read, args), **named))

    return call


def _promising(
    method: Callable[Concatenate[asynchronous.Client, P], Coroutine[Any, Any, asyncio.Future[T]]],
) -> Callable[Concatenate[Client, P], futures.Future[T]]:
    """Wrap a coroutine method that returns an asyncio future.

    The wrapper returns a future that any thread may use. Cancelling that one has no effect.
    """
    start: Callable[..., Coroutine[Any, Any, asyncio.Future[T]]] = method

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        promise: futures.Future[T] = futures.Future()
        promise.set_running_or_notify_cancel()

        def tell(done: asyncio.Future[T]) -> None:
            error = futures.CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                promise.set_exception(error)
            else:
                promise.set_result(done.result())

        async def begin() -> None:
            (await start(self.inner, *args, **kwargs)).add_done_callback(tell)

        self._running().wait(begin())
        return promise

    return call


def _read(argument: object) -> object:
    return list(argument) if isinstance(argument, Iterator) else argument


def _subscribing(
    method: Callable[Concatenate[asynchronous.Client, P], pushconsumer.Subscription],
) -> Callable[Concatenate[Client, P], Subscription]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Subscription:
        thread = self._running()
        return Subscription(thread, thread.call(lambda: method(self.inner, *args, **kwargs)))

    return call


def _polling(
    method: Callable[Concatenate[asynchronous.Client, P], pullconsumer.PullConsumer],
) -> Callable[Concatenate[Client, P], PullConsumer]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> PullConsumer:
        thread = self._running()
        return PullConsumer(thread, thread.call(lambda: method(self.inner, *args, **kwargs)))

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

    The decorated function is a plain function here. It runs in a thread of the client's own pool.
    In the event loop's default pool such functions could occupy all threads, and wait for sends
    whose messages are packed in the same pool.
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
                work = functools.partial(copy_context().run, function, message)
                return await asyncio.get_running_loop().run_in_executor(self._functions(), work)

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
        self._opening = threading.RLock()
        self._thread: LoopThread | None = None
        #: Threads of functions that reply to requests or check transactions.
        self._pool: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<BlockingClient over {self._inner!r}>"

    def __enter__(self) -> Client:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Open the client."""
        with self._opening:
            if self._thread is not None:
                return
            thread = LoopThread()
            try:
                thread.wait(self._inner.start())
            except BaseException:
                thread.close()
                raise
            self._thread = thread

    def close(self) -> None:
        """Leave all groups, close all connections and end the thread.

        Calls that other threads still wait for raise NotOpen.
        """
        with self._opening:
            thread, self._thread = self._thread, None
            pool, self._pool = self._pool, None
        if thread is not None and thread.is_of_this_process:
            try:
                thread.wait(self._inner.close())
            finally:
                thread.close()
                if pool is not None:
                    pool.shutdown(wait=False, cancel_futures=True)

    @property
    def inner(self) -> asynchronous.Client:
        """The asyncio client; run its coroutines with :meth:`wait`."""
        return self._inner

    def status(self) -> ClientStatus:
        """Return connections, subscriptions with their lag, and what is unavailable."""
        return self._running().call(self._inner.status)

    def topic(
        self,
        name: str,
        value_type: type[T],
        *,
        serializer: Serializer[T] | Literal["json", "msgpack"] = "json",
        keys: Callable[[T], Iterable[Key] | Key] | None = None,
        order_key: Callable[[T], Key | None] | None = None,
    ) -> TypedTopic[T]:
        """Return a topic whose messages are values of one type; see the asyncio Client."""
        from cometmq.client.serializers import TypedBody
        from cometmq.client.typed import TypedTopic as Inner

        body = TypedBody(value_type, serializer, keys=keys, order_key=order_key)
        return TypedTopic(self, Inner(self._inner, name, body), body)

    @property
    def puller(self) -> Puller:
        """Reader of queues at explicit offsets, without a consumer group.

        Raises NotOpen when the client is not open.
        """
        return Puller(self._running(), self._inner.puller)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop, such as one of the admin operations.

        Raises NotOpen when the client is not open.
        """
        try:
            thread = self._running()
        except NotOpen:
            work.close()
            raise
        return thread.wait(work)

    def _functions(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_FUNCTION_THREADS, "cometmq function")
        return self._pool

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise NotOpen("the client is not open: use `with Client(...)`, or start()")
        return self._thread

    send = _waiting(asynchronous.Client.send)
    recall = _waiting(asynchronous.Client.recall)
    send_oneway = _waiting(asynchronous.Client.send_oneway)
    send_batch = _waiting(asynchronous.Client.send_batch)
    send_many = _waiting(asynchronous.Client.send_many)
    send_soon = _promising(asynchronous.Client.send_soon)
    flush = _waiting(asynchronous.Client.flush)
    drain = _waiting(asynchronous.Client.drain)
    queues = _waiting(asynchronous.Client.queues)
    subscribe = _subscribing(asynchronous.Client.subscribe)
    pull_consumer = _polling(asynchronous.Client.pull_consumer)
    transaction = _transacting(asynchronous.Client.transaction)
    transaction_checker = _deciding(asynchronous.Client.transaction_checker)
    request = _waiting(asynchronous.Client.request)
    replier = _deciding(asynchronous.Client.replier)


class TypedMessage(MessageView, Generic[T]):
    """A message of a typed subscription, with its ``value``."""

    __slots__ = ("_received", "value")

    def __init__(self, received: ReceivedMessage, value: T) -> None:
        super().__init__(received.stored)
        self._received = received
        self.value = value

    def processing(self, *, reraise: bool = False) -> Processing:
        """Return a block that settles the message; see ReceivedMessage.processing."""
        return self._received.processing(reraise=reraise)

    def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        self._received.ack()

    def retry(self, delay_level: int = 0, *, pause_ms: int = 0) -> None:
        """Have the message delivered again later."""
        self._received.retry(delay_level, pause_ms=pause_ms)


class TypedSubscription(Generic[T]):
    """Membership in a consumer group whose messages have a ``value``; see Subscription."""

    def __init__(
        self, subscription: Subscription, body: TypedBody[T], on_undecodable: OnUndecodable
    ) -> None:
        self._subscription = subscription
        self._body = body
        from cometmq.client.typed import Undecodable

        self._undecodable = Undecodable(on_undecodable)

    @property
    def undecodable_count(self) -> int:
        """Number of deliveries that could not be decoded."""
        return self._undecodable.count

    def __enter__(self) -> TypedSubscription[T]:
        self._subscription.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        return self

    def __next__(self) -> TypedMessage[T]:
        while True:
            received = next(self._subscription)
            try:
                return TypedMessage(received, self._body.decode(received))
            except UndecodableMessage as error:
                with received.processing():
                    # ``settle`` of a blocking message has finished when it returns.
                    self._undecodable.settle(received, error)

    def run(self, handler: Callable[[TypedMessage[T]], Any], *, reraise: bool = False) -> None:
        """Call ``handler`` with every message that can be decoded; see Subscription.run."""
        check_function("handler", handler)

        def handle(received: ReceivedMessage) -> None:
            try:
                value = self._body.decode(received)
            except UndecodableMessage as error:
                self._undecodable.settle(received, error)
            else:
                handler(TypedMessage(received, value))

        self._subscription.run(handle, reraise=reraise)

    def close(self, timeout_ms: int = pushconsumer.DRAIN_MS) -> int:
        """Leave the group; iterations and handlers end. See the asyncio Subscription."""
        return self._subscription.close(timeout_ms)


class TypedTopic(Generic[T]):
    """A topic whose messages are values of one type, created by ``Client.topic``."""

    def __init__(self, client: Client, inner: typed.TypedTopic[T], body: TypedBody[T]) -> None:
        self.name = inner.name
        self._client = client
        self._inner = inner
        self._body = body

    def __repr__(self) -> str:
        return repr(self._inner)

    def decode(self, message: MessageView) -> T:
        """Return the value of a message, for example from a Puller. Raises UndecodableMessage."""
        return self._body.decode(message)

    def message(self, value: T, **keywords: Unpack[Delayed]) -> Message:
        """Return a value as a message, for ``send_batch`` and ``send_many`` of the client."""
        return self._inner.message(value, **keywords)

    def send(self, value: T, **keywords: Unpack[SendKeywords]) -> SendResult:
        """Send a value and wait until a broker has stored it; see Client.send."""
        return self._client.wait(self._inner.send(value, **keywords))

    def send_oneway(self, value: T, **keywords: Unpack[Content]) -> None:
        """Send a value without waiting for a response; see Client.send_oneway."""
        self._client.wait(self._inner.send_oneway(value, **keywords))

    def send_batch(
        self, values: Iterable[T], *, timeout_ms: int = 0, **keywords: Unpack[Content]
    ) -> list[SendResult]:
        """Send values in one request: all are stored, or none; see Client.send_batch."""
        sending = self._inner.send_batch(list(values), timeout_ms=timeout_ms, **keywords)
        return self._client.wait(sending)

    def transaction(
        self, value: T, *, group: str = "", **keywords: Unpack[PromptKeywords]
    ) -> Transaction:
        """Send a value that consumers see only if a block succeeds; see Client.transaction."""
        body = self._body.encode(value)
        filled = self._body.filled(value, keywords)
        return self._client.transaction(self.name, body, group=group, **filled)

    def request(self, value: T, reply: type[R], **keywords: Unpack[PromptKeywords]) -> R:
        """Send a value and return the reply, a value of type ``reply``; see Client.request."""
        return self._client.wait(self._inner.request(value, reply, **keywords))

    def replier(
        self, reply: type[R], *, group: str, concurrency: int = 8, start: Start = "last"
    ) -> Callable[[Callable[[T], R | None]], Callable[[T], R | None]]:
        """Return a decorator for a function that takes a value and returns the reply.

        The function returns None for no reply; see Client.replier.
        """
        register = self._client.replier(
            self.name, group=group, concurrency=concurrency, start=start
        )
        replies = self._body.reply(reply)

        def decorate(function: Callable[[T], R | None]) -> Callable[[T], R | None]:
            def respond(message: MessageView) -> bytes | None:
                answer = function(self._body.decode(message))
                return None if answer is None else replies.encode(answer)

            register(respond)
            return function

        return decorate

    def subscribe(
        self,
        *,
        group: str,
        filter: str | Sql = "*",
        concurrency: int = 8,
        ordered: bool = False,
        mode: Mode = "clustering",
        start: Start = "last",
        max_reconsume_times: int = -1,
        allocation: Allocation = "average",
        on_undecodable: OnUndecodable = "retry",
    ) -> TypedSubscription[T]:
        """Consume values as a member of ``group``; see the asyncio client's TypedTopic."""
        subscription = self._client.subscribe(
            self.name,
            group=group,
            filter=filter,
            concurrency=concurrency,
            ordered=ordered,
            mode=mode,
            start=start,
            max_reconsume_times=max_reconsume_times,
            allocation=allocation,
        )
        return TypedSubscription(subscription, self._body, on_undecodable)
