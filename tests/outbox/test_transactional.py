"""Rows as transactional messages: there once, if and only if they are marked, whatever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cometmq.client.client import Client
from cometmq.message.model import Message, MessageView
from cometmq.outbox.publishing import ATTEMPT, checker, may_be_half
from cometmq.outbox.relay import Relay, RelaySettings
from cometmq.outbox.row import Row, Settled
from cometmq.testing.cluster import Cluster, running_cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.outbox.boxes import Shop, first_copies, keyed, stored
from tests.outbox.test_relay import Killed, Wrapped

SETTINGS = RelaySettings(page_rows=8, transactional=True)


@pytest.fixture
async def eager(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A broker that asks soon and often."""
    settings = {"transactionTimeOut": 1, "transactionCheckInterval": 50}
    async with running_cluster(tmp_path / "eager", **settings) as cluster:
        yield cluster


async def numbers(client: Client, topic: str) -> list[int]:
    return sorted(int(message.body[1:]) for message in await stored(client, topic))


async def test_rows_without_a_key_are_there_once_and_the_others_in_order(
    eager: Cluster, shop: Shop
) -> None:
    async with Client(eager.namesrv) as client:
        topic = await fresh_topic(client)
        shop.write(topic, [*keyed("ab", 5), *((None, number) for number in range(20))])
        assert await Relay(client, shop.outbox, SETTINGS).drain() == 30
        found = await stored(client, topic)
        assert first_copies(found)["a"] == first_copies(found)["b"] == list(range(5))
        unordered = [message for message in found if message.body.startswith(b":")]
        assert sorted(int(message.body[1:]) for message in unordered) == list(range(20))
        assert all(ATTEMPT in message.properties for message in unordered)


async def test_a_crash_repeats_nothing_and_loses_nothing(eager: Cluster, shop: Shop) -> None:
    """Killed before and after rows are marked: the broker asks, and each row is there once."""
    shop_topic = ""
    async with Client(eager.namesrv) as client:
        shop_topic = await fresh_topic(client)
        shop.write(shop_topic, [(None, number) for number in range(24)])
        dying = Wrapped(shop.outbox)

        def die(_: Settled) -> None:
            raise Killed

        dying.before_settle = die
        with suppress(Killed):
            await Relay(client, dying, SETTINGS).drain()
    async with Client(eager.namesrv) as client:
        # This one marks its page, and dies before it has told the broker.
        dying.before_settle = lambda _: None
        dying.after_settle = die
        with suppress(Killed):
            await Relay(client, dying, SETTINGS).drain()
    async with Client(eager.namesrv) as client:
        async with Relay(client, shop.outbox, SETTINGS) as relay:
            await eventually(lambda: relay.published == 16)
            async with asyncio.timeout(60):
                while len(found := await numbers(client, shop_topic)) < 24:
                    await asyncio.sleep(0.02)
        assert found == list(range(24))


async def test_what_the_checker_says() -> None:
    view = SimpleNamespace(
        message_id=Row(7, "t", None, "{}", b"x", 0).message_id, properties={ATTEMPT: "mine"}
    )
    asked: list[int] = []
    for marked, expected in ((None, None), ("mine", True), ("another's", False), ("", False)):

        async def sent_as(row_id: int, marked: str | None = marked) -> str | None:
            asked.append(row_id)
            return marked

        assert await checker(sent_as)(cast("MessageView", view)) is expected
    assert asked == [7] * 4


def test_what_can_be_a_half_message() -> None:
    assert may_be_half(Row(1, "t", None, "{}", b"", 0))
    assert not may_be_half(Row(1, "t", "key", "{}", b"", 0))
    assert not may_be_half(Row(1, "t", None, '{"delay_level": 3}', b"", 0))
    assert not may_be_half(Row(1, "t", None, "{", b"", 0))
    assert not may_be_half(Row(1, "t", None, '{"born_ms": 3}', b"", 0))


async def test_a_row_that_can_never_be_sent_is_refused(eager: Cluster, shop: Shop) -> None:
    async with Client(eager.namesrv, max_message_bytes=10) as client:
        topic = await fresh_topic(client)
        with shop.transaction() as connection:
            insert = shop.outbox.statement(Message(topic, b"x"))
            connection.execute(*insert)
            shop.outbox.add(connection, Message(topic, b"x", properties={"y" * 20_000: "z"}))
            shop.outbox.add(connection, Message(topic, b"x", properties={"y" * 40_000: "z"}))
        relay = Relay(client, shop.outbox, SETTINGS)
        assert await relay.drain() == 2
        assert "the limit is 32767" in shop.outbox.refused()[0].reason


async def test_rows_wait_while_the_broker_is_away(eager: Cluster, shop: Shop) -> None:
    async with Client("127.0.0.1:9", send_timeout_ms=300, request_timeout_ms=100) as client:
        shop.write("t", [(None, 1), ("a", 1)])
        async with Relay(client, shop.outbox, SETTINGS) as relay:
            await eventually(lambda: relay._failures["t"] > 1)
        assert shop.outbox.status().waiting == 2
