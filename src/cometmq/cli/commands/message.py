"""``cometmq send`` and ``cometmq consume``."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cometmq.admin.views import moment
from cometmq.cli import render, serve
from cometmq.cli.configuration import parse_settings
from cometmq.cli.connect import AsJson, Namesrv, client, run
from cometmq.core.errors import RouteNotFound
from cometmq.message.model import Message

if TYPE_CHECKING:
    from cometmq.client.consumer.pushconsumer import Subscription
    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.client.sendrequests import SendResult

BATCH_LINES = 256


def send(
    topic: Annotated[str, typer.Argument(show_default=False)],
    body: Annotated[str, typer.Argument(help="The body; '-' reads it from standard input.")] = "-",
    namesrv: Namesrv = "",
    tag: Annotated[str, typer.Option(help="Tag, by which consumers filter.")] = "",
    key: Annotated[
        list[str] | None,
        typer.Option(help="Key to find the message by; may be given several times."),
    ] = None,
    order_key: Annotated[
        str, typer.Option(help="Messages with the same order key stay in order.")
    ] = "",
    delay_level: Annotated[int, typer.Option(min=0, help="Delay level; 0 delivers at once.")] = 0,
    property: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A user property.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Send each line of the body as a message.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send a message, or one for each line, and print the place where it is stored."""
    raw = sys.stdin.buffer.read() if body == "-" else body.encode()
    bodies = [line for line in raw.splitlines() if line] if lines else [raw]
    properties = parse_settings(property or [])
    messages = [
        Message(topic, each, tag, tuple(key or ()), 0, delay_level, True, properties)
        for each in bodies
    ]

    async def main() -> list[SendResult]:
        found: list[SendResult] = []
        async with client(namesrv) as opened:
            for at in range(0, len(messages), BATCH_LINES):
                part = messages[at : at + BATCH_LINES]
                if len(part) == 1 or delay_level:
                    sends = (opened.send(each, order_key=order_key or None) for each in part)
                    found += await asyncio.gather(*sends)
                else:
                    found += await opened.send_many(part, order_key=order_key or None)
        return found

    results = run(main())
    if as_json:
        render.print_json(results)
        return
    for result in results:
        queue = result.queue
        typer.echo(
            f"sent id={result.message_id} status={result.status.name} broker={queue.broker_name} "
            f"queue={queue.queue_id} offset={result.queue_offset}"
        )


def consume(
    topic: Annotated[str, typer.Argument(show_default=False)],
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")],
    namesrv: Namesrv = "",
    filter: Annotated[str, typer.Option(help="Tags, such as 'insert || update'.")] = "*",
    count: Annotated[
        int, typer.Option(min=0, help="Stop after this number of messages; 0: never.")
    ] = 0,
    start: Annotated[
        Literal["first", "last"],
        typer.Option("--from", help="Position at which a new group begins."),
    ] = "first",
    timeout: Annotated[
        float, typer.Option(min=0, help="Stop after this many seconds without a message; 0: never.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Consume messages as a member of a group and print them; interrupt to stop.

    The exit code is 1 if fewer than --count messages were received before the timeout. Without
    --count it is 1 if no message was received because the topic does not exist.
    """

    async def main() -> int:
        stop = asyncio.Event()
        serve.on_signals(stop.set)
        async with client(namesrv) as opened:
            subscription = opened.subscribe(
                topic, group=group, filter=filter, start=start, concurrency=1
            )
            await subscription.start()
            try:
                await opened.session.route(topic)
            except RouteNotFound as error:
                typer.echo(f"cometmq: {error}; waiting for it", err=True)
            idle = Idle(subscription, stop, timeout)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(idle.close_in_time())
                taken = 0
                async for message in subscription:
                    async with message.processing():
                        _show(message, as_json=as_json)
                    taken += 1
                    idle.seen.set()
                    if taken == count:
                        break
                watch.cancel()
            if not taken:
                await opened.session.route(topic)  # raises if there is no such topic
        return taken

    if run(main()) < count:
        raise typer.Exit(1)


class Idle:
    """Closes a subscription when idle.

    It is closed on ``stop``, or when :attr:`seen` was not set for ``timeout_s``; with 0 only on
    ``stop``.
    """

    def __init__(self, subscription: Subscription, stop: asyncio.Event, timeout_s: float) -> None:
        self.seen = asyncio.Event()
        self._subscription = subscription
        self._stop = stop
        self._timeout_s = timeout_s or None

    async def close_in_time(self) -> None:
        """Wait for ``stop`` or the timeout, then close the subscription."""
        while not self._stop.is_set():
            self.seen.clear()
            async with asyncio.TaskGroup() as tasks:
                waits = [tasks.create_task(self._stop.wait()), tasks.create_task(self.seen.wait())]
                done, left = await asyncio.wait(
                    waits, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                for wait in left:
                    wait.cancel()
            if not done:
                break
        await self._subscription.close()


def _show(message: ReceivedMessage, *, as_json: bool) -> None:
    queue = message.queue
    if as_json:
        value = {
            "id": message.message_id,
            "topic": message.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": message.queue_offset,
            "tag": message.tag,
            "keys": message.keys,
            "store_ms": message.store_ms,
            "reconsume_times": message.reconsume_times,
            "body": message.body.decode(errors="replace"),
        }
        render.print_json([value])
        return
    typer.echo(
        f"{moment(message.store_ms)} queue={queue.queue_id} "
        f"offset={message.queue_offset} tag={message.tag or '-'} "
        f"keys={','.join(message.keys) or '-'} {render.body_text(message.body)}"
    )
