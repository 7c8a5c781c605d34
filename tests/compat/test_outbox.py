"""The outbox against Java brokers: rows in order, and as half messages that the broker asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.outbox import Relay, SqliteOutbox
from cometmq.outbox.relay import RelaySettings
from cometmq.outbox.row import Settled
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic
from tests.compat.conftest import Target
from tests.outbox.boxes import Shop, first_copies, keyed, stored
from tests.outbox.test_relay import Killed, Wrapped

PATIENCE_MS = 10_000
PAGE_ROWS = 8


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    outbox = SqliteOutbox(tmp_path / "shop.sqlite")
    outbox.create()
    return Shop(outbox)


def die(_: Settled) -> None:
    raise Killed


async def crash(target: Target, shop: Shop, settings: RelaySettings, *, settled: bool) -> None:
    """A relay in a program of its own dies with a page sent, before or after it is settled."""
    dying = Wrapped(shop.outbox)
    if settled:
        dying.after_settle = die
    else:
        dying.before_settle = die
    async with Client(target.namesrv, send_timeout_ms=PATIENCE_MS) as client:
        with suppress(Killed):
            await Relay(client, dying, settings).drain()


async def test_keys_stay_in_order_over_a_crash(target: Target, shop: Shop) -> None:
    settings = RelaySettings(page_rows=PAGE_ROWS)
    async with Client(target.namesrv, send_timeout_ms=PATIENCE_MS) as client:
        topic = await fresh_topic(client)
        shop.write(topic, keyed("abc", 10))
        await crash(target, shop, settings, settled=False)
        await Relay(client, shop.outbox, settings).drain()
        found = await stored(client, topic)
    assert len(found) == 30 + PAGE_ROWS
    assert first_copies(found) == {key: list(range(10)) for key in "abc"}


async def test_half_messages_of_dead_relays_end_as_their_rows_say(
    target: Target, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RelaySettings(page_rows=PAGE_ROWS, transactional=True, group=fresh_name("relay"))
    answered = count_answers(monkeypatch)
    async with Client(target.namesrv, send_timeout_ms=PATIENCE_MS) as client:
        topic = await fresh_topic(client)
        shop.write(topic, [(None, number) for number in range(3 * PAGE_ROWS)])
    await crash(target, shop, settings, settled=False)  # the broker drops these
    await crash(target, shop, settings, settled=True)  # and commits these
    async with (
        Client(target.namesrv, send_timeout_ms=PATIENCE_MS) as client,
        Relay(client, shop.outbox, settings),
    ):
        await eventually(lambda: answered() >= 2 * PAGE_ROWS, deadline_s=60)
        async with asyncio.timeout(30):
            while len(found := await stored(client, topic)) < 3 * PAGE_ROWS:
                await asyncio.sleep(0.05)
    assert len(found) == 3 * PAGE_ROWS
    assert sorted(first_copies(found)[""]) == list(range(3 * PAGE_ROWS))


def count_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a broker was told how a half message ended."""
    told: list[int] = []
    ask = Relay._sent_as

    async def asked(relay: Relay, row_id: int) -> str | None:
        marked = await ask(relay, row_id)
        if marked is not None:
            told.append(row_id)
        return marked

    monkeypatch.setattr(Relay, "_sent_as", asked)
    return lambda: len(told)
