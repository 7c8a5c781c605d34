"""Runs: handlers that are done at once get messages one after the other, and what is not done at
once is a message like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from cometmq.client.consumer.inflight import InFlight
from cometmq.client.consumer.pushconsumer import Subscription
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.hooks import ConsumeAttempt, Outcome
from cometmq.client.producer import Producer
from cometmq.client.session import Session
from tests.client.consumer.test_options import options
from tests.client.consumer.test_pushconsumer import fill
from tests.client.fake_broker import FakeBroker
from tests.client.scripted import eventually

pytestmark = pytest.mark.core


class Counted:
    """Messages that runs settled."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def in_runs(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted, finish = Counted(), InFlight.finish_run

    def counting(self: InFlight, count: int, now_ms: int) -> None:
        counted.count += count
        finish(self, count, now_ms)

    monkeypatch.setattr(InFlight, "finish_run", counting)
    return counted


@asynccontextmanager
async def handled(
    session: Session, handler: Any, *, concurrency: int = 8, hooks: tuple[Any, ...] = ()
) -> AsyncIterator[Subscription]:
    wanted = options(start="first", concurrency=concurrency)
    async with Subscription(session, Producer(session), wanted, hooks) as given:
        running = asyncio.create_task(given.run(handler))
        yield given
    await running


async def test_all_but_the_first_of_a_pull_are_one_run(
    broker: FakeBroker, session: Session, in_runs: Counted
) -> None:
    fill(broker, *map(str, range(200)))
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with handled(session, handle):
        await eventually(lambda: len(seen) == 200)
    assert seen == [b"%d" % at for at in range(200)]
    assert broker.offset("g", "t") == 200
    assert in_runs.count >= 150


async def test_a_message_that_is_done_stays_done(
    broker: FakeBroker, session: Session, in_runs: Counted
) -> None:
    fill(broker, *map(str, range(10)))
    kept: list[ReceivedMessage] = []
    async with handled(session, kept.append):
        await eventually(lambda: len(kept) == 10)
        for message in kept:
            message.ack()
            await message.retry()
            async with message.processing():
                pass
    assert broker.offset("g", "t") == 10
    assert len(kept) == 10
    assert in_runs.count > 0


async def test_a_handler_that_waits_lets_the_others_go_on(
    broker: FakeBroker, session: Session, in_runs: Counted
) -> None:
    fill(broker, *map(str, range(40)))
    gate, seen = asyncio.Event(), set[bytes]()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"5":
            await gate.wait()
            await asyncio.sleep(0)
        seen.add(message.body)

    async with handled(session, handle, concurrency=2):
        await eventually(lambda: len(seen) == 39)
        assert (broker.offset("g", "t") or 0) <= 5
        gate.set()
        await eventually(lambda: len(seen) == 40)
    assert broker.offset("g", "t") == 40
    assert in_runs.count > 0


@pytest.mark.parametrize("waits", [False, True])
async def test_what_a_handler_raises_is_its_messages_alone(
    broker: FakeBroker, session: Session, waits: bool
) -> None:
    fill(broker, *map(str, range(30)))
    seen: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body in (b"7", b"8") and not message.reconsume_times:
            if waits:
                await asyncio.sleep(0)
            raise ValueError("not yet")

    async with handled(session, handle):
        await eventually(lambda: len(seen) == 32)
    assert {body for body, times in seen if times} == {b"7", b"8"}
    assert len({body for body, _ in seen}) == 30
    assert broker.offset("g", "t") == 30


async def test_a_handler_may_say_what_becomes_of_its_message(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, *map(str, range(20)))
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"3":
            message.ack()
        elif message.body == b"6" and not message.reconsume_times:
            await message.retry()
        elif message.body == b"9" and not message.reconsume_times:
            async with message.processing():
                raise ValueError("not yet")

    async with handled(session, handle):
        await eventually(lambda: len(seen) == 22)
    assert sorted(seen) == sorted([b"%d" % at for at in range(20)] + [b"6", b"9"])


async def test_with_reraise_the_run_ends(broker: FakeBroker, session: Session) -> None:
    fill(broker, *map(str, range(20)))
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"4" and not message.reconsume_times:
            raise KeyError("gone")

    wanted = options(start="first")
    async with Subscription(session, Producer(session), wanted) as given:
        with pytest.raises(KeyError, match="gone"):
            await given.run(handle, reraise=True)
    # Others may have gone on while the message was sent back.
    assert seen[:5] == [b"0", b"1", b"2", b"3", b"4"]
    assert (broker.offset("g", "t") or 0) >= 5


async def test_a_cancelled_handler_gives_its_message_back(
    broker: FakeBroker, session: Session
) -> None:
    fill(broker, *map(str, range(10)))
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"4":
            await asyncio.Event().wait()

    wanted = options(start="first", concurrency=1)
    async with Subscription(session, Producer(session), wanted) as given:
        running = asyncio.create_task(given.run(handle))
        await eventually(lambda: len(seen) == 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert broker.offset("g", "t") == 4


def has_more_than(given: list[Any], count: int) -> bool:
    return len(given) > count


async def test_other_awaitables_are_waited_for(broker: FakeBroker, session: Session) -> None:
    fill(broker, *map(str, range(10)))
    waiting: list[asyncio.Future[None]] = []

    def handle(_: ReceivedMessage) -> Awaitable[None]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    async with handled(session, handle, concurrency=3):
        await eventually(lambda: len(waiting) == 3)
        assert not broker.offset("g", "t")
        for number in range(10):
            await eventually(partial(has_more_than, waiting, number))
            waiting[number].set_result(None)
    assert broker.offset("g", "t") == 10


async def test_hooks_hear_of_each_message(
    broker: FakeBroker, session: Session, in_runs: Counted
) -> None:
    class Hearing:
        def __init__(self) -> None:
            self.outcomes: list[Outcome | None] = []

        def before(self, attempt: ConsumeAttempt) -> None:
            pass

        def after(self, attempt: ConsumeAttempt) -> None:
            self.outcomes.append(attempt.outcome)

    fill(broker, *map(str, range(10)))
    hook = Hearing()
    async with handled(session, lambda _: None, hooks=(hook,)):
        await eventually(lambda: len(hook.outcomes) == 10)
    assert set(hook.outcomes) == {Outcome.ACKNOWLEDGED}
    assert in_runs.count == 0


async def test_the_loop_goes_round_between_runs(broker: FakeBroker, session: Session) -> None:
    fill(broker, *map(str, range(500)))
    seen = turns = longest = before = 0

    def handle(_: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1

    async def turn() -> None:
        nonlocal turns, longest, before
        while seen < 500:
            longest, before = max(longest, seen - before), seen
            turns += 1
            await asyncio.sleep(0)

    async with handled(session, handle, concurrency=1):
        await asyncio.wait_for(turn(), 10)
    assert longest <= 65
