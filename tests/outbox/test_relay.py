"""The relay publishes what is committed, in order, over crashes, beside others, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from cometmq.admin.api import Admin
from cometmq.client.blocking import Client as BlockingClient
from cometmq.client.client import Client
from cometmq.core.errors import CometError, SettingsError
from cometmq.message.model import Message
from cometmq.outbox.relay import Relay, RelaySettings
from cometmq.outbox.row import OutboxBusy, Page, Settled, Source, Sources, WantedRows
from cometmq.outbox.table import Outbox
from cometmq.protocol.bodies import PERM_READ
from cometmq.testing.cluster import Cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic
from tests.outbox.boxes import Shop, body, first_copies, keyed, stored

SMALL_PAGES = RelaySettings(page_rows=7)


class Killed(BaseException):
    """What a process that is killed does not live to see."""


class Wrapped:
    """An outbox with something else in the place of a relay's calls."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.name = outbox.name
        self.errors = outbox.errors
        self.before_settle: Callable[[Settled], None] = lambda _: None
        self.after_settle: Callable[[Settled], None] = lambda _: None
        self.before_take: Callable[[], None] = lambda: None

    def open(self) -> Source:
        return WrappedSource(self, self.outbox.open())


class WrappedSource:
    def __init__(self, wrapped: Wrapped, source: Source) -> None:
        self._wrapped = wrapped
        self._source = source
        self.give_up, self.sent_as, self.close = source.give_up, source.sent_as, source.close

    def take(self, wanted: WantedRows) -> Page | None:
        self._wrapped.before_take()
        return self._source.take(wanted)

    def settle(self, settled: Settled) -> None:
        self._wrapped.before_settle(settled)
        self._source.settle(settled)
        self._wrapped.after_settle(settled)


def relay(client: Client, outbox: Sources, settings: RelaySettings = SMALL_PAGES) -> Relay:
    return Relay(client, outbox, settings)


async def waits(shop: Shop) -> int:
    return (await asyncio.to_thread(shop.outbox.status)).waiting


async def test_everything_is_published_once_and_each_key_in_order(
    client: Client, shop: Shop
) -> None:
    topic = await fresh_topic(client)
    shop.write(topic, keyed("abcde", 20))
    assert await relay(client, shop.outbox).drain() == 100
    found = await stored(client, topic)
    assert len(found) == 100
    assert first_copies(found) == {key: list(range(20)) for key in "abcde"}
    assert await waits(shop) == 0
    assert await relay(client, shop.outbox).drain() == 0


async def test_a_crash_between_send_and_settle_repeats_and_loses_nothing(
    client: Client, shop: Shop
) -> None:
    topic = await fresh_topic(client)
    shop.write(topic, keyed("ab", 20))
    dying = Wrapped(shop.outbox)

    def die(_: Settled) -> None:
        raise Killed

    dying.before_settle = die
    for _ in range(3):
        with suppress(Killed):
            await relay(client, dying).drain()
    assert await relay(client, shop.outbox).drain() == 40
    found = await stored(client, topic)
    assert len(found) == 40 + 3 * 7
    assert first_copies(found) == {key: list(range(20)) for key in "ab"}


def test_a_page_that_is_not_settled_lets_go_at_once(shop: Shop) -> None:
    shop.write("t", [("a", 1)])
    for _ in range(100):
        source = shop.outbox.open()
        assert source.take(WantedRows(1, 1, 1)) is not None
        source.close()


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_page_is_settled_in_time_with_what_was_sent(
    client: Client, shop: Shop, transactional: bool
) -> None:
    """Delayed messages are sent one by one, so each is a batch."""
    topic = await fresh_topic(client, queues=1)
    with shop.transaction() as connection:
        for number in range(6):
            message = Message(topic, body("a", number), delay_level=1)
            shop.outbox.add(connection, message, order_key="a")
            shop.outbox.add(connection, Message(topic, body(None, number)))
    pages: list[int] = []
    counted = Wrapped(shop.outbox)
    counted.before_settle = lambda settled: pages.append(len(settled.published))
    settings = RelaySettings(page_ms=0, transactional=transactional)
    assert await relay(client, counted, settings).drain() == 12
    assert sum(pages) == 12
    assert len([count for count in pages if count]) >= 6


async def test_rows_of_plain_sql_are_sent_and_impossible_ones_hold_up_none(
    client: Client, shop: Shop
) -> None:
    topic = await fresh_topic(client)
    table = shop.outbox.table
    with shop.transaction() as connection:
        for statement in (
            f"INSERT INTO {table} (topic, body, created_ms) VALUES ('{topic}', 'x:1', {10**18})",
            f"INSERT INTO {table} (topic, order_key, headers, body) "
            f"""VALUES ('{topic}', 'A17', '{{"tag": "paid", "keys": ["A17"]}}', 'y:2')""",
        ):
            connection.execute(statement)
    working = relay(client, shop.outbox)
    assert await working.drain() == 1
    assert working.refused == 1
    assert "created_ms" in shop.outbox.refused()[0].reason
    [found] = await stored(client, topic)
    assert (found.body, found.tag, found.keys) == (b"y:2", "paid", ("A17",))


async def test_it_works_beside_the_application_and_finishes_its_page(
    client: Client, shop: Shop
) -> None:
    topic = await fresh_topic(client)
    async with relay(client, shop.outbox, RelaySettings(poll_interval_ms=60_000)) as working:
        for number in range(5):
            await asyncio.to_thread(shop.write, topic, [("a", number)])
            working.wake()
            await eventually(lambda at=number: working.published == at + 1)  # type: ignore[misc]
    assert first_copies(await stored(client, topic)) == {"a": list(range(5))}


async def test_it_looks_by_itself_now_and_then(client: Client, shop: Shop) -> None:
    topic = await fresh_topic(client)
    async with relay(client, shop.outbox, RelaySettings(poll_interval_ms=5)) as working:
        await asyncio.to_thread(shop.write, topic, [("a", 1)])
        await eventually(lambda: working.published == 1)


async def test_what_can_never_be_sent_is_set_aside_and_its_key_waits(
    client: Client, shop: Shop
) -> None:
    topic = await fresh_topic(client)
    shop.write(topic, keyed("ab", 2))
    with shop.transaction() as connection:
        generous = type(shop.outbox)(*_place(shop.outbox), max_message_bytes=1 << 30)
        poison = generous.add(connection, Message(topic, bytes(5 << 20)), order_key="a")
    shop.write(topic, keyed("ab", 3, start=2))
    working = relay(client, shop.outbox)
    assert await working.drain() == 2 * 2 + 3
    assert working.refused == 1
    assert first_copies(await stored(client, topic)) == {"a": [0, 1], "b": [0, 1, 2, 3, 4]}
    [refusal] = shop.outbox.refused()
    assert (refusal.id, refusal.order_key) == (poison, "a")
    assert refusal.reason == f"the body has {5 << 20} bytes; the limit is {4 << 20}"
    assert await waits(shop) == 3
    assert shop.outbox.discard(poison)
    assert await relay(client, shop.outbox).drain() == 3
    assert first_copies(await stored(client, topic))["a"] == [0, 1, 2, 3, 4]


def _place(outbox: Any) -> tuple[Any, str]:
    return getattr(outbox, "path", None) or outbox.conninfo, outbox.table


def _named(outbox: Any, table: str) -> Outbox:
    """The outbox of another table of the same database."""
    place, _ = _place(outbox)
    found = type(outbox)(place, table)
    assert isinstance(found, Outbox)
    return found


async def test_a_topic_that_fails_rests_and_the_others_go_on(client: Client, shop: Shop) -> None:
    topic = await fresh_topic(client)
    closed = fresh_name()
    await Admin(client.session).create_topic(closed, perm=PERM_READ)
    shop.write(closed, keyed("ab", 10))
    shop.write(topic, keyed("ab", 10))
    async with relay(client, shop.outbox, RelaySettings(page_rows=4)) as working:
        await eventually(lambda: working.published == 20)
    assert await waits(shop) == 20
    with pytest.raises(CometError):
        await relay(client, shop.outbox).drain()
    await Admin(client.session).create_topic(closed)
    await client.session.refresh(closed)
    await relay(client, shop.outbox).drain()
    assert first_copies(await stored(client, closed)) == {key: list(range(10)) for key in "ab"}


async def test_a_database_that_fails_is_opened_again(client: Client, shop: Shop) -> None:
    topic = await fresh_topic(client)
    shop.write(topic, keyed("ab", 10))
    failing = Wrapped(shop.outbox)
    failures = iter(range(3))

    def fail() -> None:
        if next(failures, None) is not None:
            raise failing.errors[0]("the disk is gone")

    failing.before_take = fail
    settings = RelaySettings(retry_pause_ms=1)
    async with relay(client, failing, settings) as working:
        await eventually(lambda: working.published == 20)
    failures = iter(range(1))
    with pytest.raises(failing.errors[0]):
        await relay(client, failing).drain()


def test_a_program_without_a_loop_publishes_too(
    cometmq_session_cluster: Cluster, sqlite_shop: Shop
) -> None:
    with BlockingClient(cometmq_session_cluster.namesrv) as client:
        topic = client.wait(fresh_topic(client.inner))
        sqlite_shop.write(topic, keyed("ab", 3))
        assert client.wait(Relay(client.inner, sqlite_shop.outbox).drain()) == 6
        assert len(client.wait(stored(client.inner, topic))) == 6


async def test_what_nobody_thought_of_is_logged_and_tried_again(
    client: Client, sqlite_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await fresh_topic(client)
    sqlite_shop.write(topic, keyed("ab", 10))
    failing = Wrapped(sqlite_shop.outbox)
    failures = iter(range(1))

    def fail(_: Settled) -> None:
        if next(failures, None) is not None:
            raise ZeroDivisionError

    failing.before_settle = fail
    async with relay(client, failing, RelaySettings(retry_pause_ms=1)) as working:
        await eventually(lambda: working.published == 20)
    assert "outbox_failed" in caplog.text


async def test_relays_side_by_side_publish_each_key_in_order(client: Client, shop: Shop) -> None:
    """Some of them die with a page sent and not settled, others take over."""
    topic = await fresh_topic(client)
    keys = [f"k{number}" for number in range(6)]
    dying = Wrapped(shop.outbox)
    settled: list[int] = []

    def die_at_times(_: Settled) -> None:
        settled.append(1)
        if len(settled) % 3 == 0:
            raise dying.errors[0]("killed")

    dying.before_settle = die_at_times
    settings = RelaySettings(page_rows=5, poll_interval_ms=1, retry_pause_ms=1)
    relays = [Relay(client, dying, settings) for _ in range(3)]
    async with relays[0], relays[1], relays[2]:
        for number in range(30):
            await asyncio.to_thread(shop.write, topic, [(key, number) for key in keys])
        await eventually(lambda: sum(each.published for each in relays) >= 180, deadline_s=120)
    assert await waits(shop) == 0
    assert first_copies(await stored(client, topic)) == {key: list(range(30)) for key in keys}


async def test_draining_says_when_another_relay_is_at_work(client: Client, shop: Shop) -> None:
    shop.write("t", [("a", 1)])
    source = shop.outbox.open()
    assert source.take(WantedRows(1, 1, 1)) is not None
    with pytest.raises(OutboxBusy, match="another relay"):
        await relay(client, shop.outbox).drain()
    source.give_up()
    source.close()


async def test_published_rows_can_stay(client: Client, shop: Shop) -> None:
    topic = await fresh_topic(client)
    shop.write(topic, [("a", 1)])
    assert await relay(client, shop.outbox, RelaySettings(keep_ms=60_000)).drain() == 1
    with shop.transaction() as connection:
        statement = f"SELECT published_ms, sent_as FROM {shop.outbox.table}"
        [(published_ms, sent_as)] = connection.execute(statement).fetchall()
    assert published_ms > 1_700_000_000_000
    assert sent_as == ""
    assert await waits(shop) == 0


async def test_a_relay_that_is_cancelled_lets_the_outbox_go(client: Client, shop: Shop) -> None:
    topic = await fresh_topic(client)
    shop.write(topic, keyed("ab", 10))
    held = asyncio.Event()
    loop = asyncio.get_running_loop()
    stuck = Wrapped(shop.outbox)

    def tell(_: Settled) -> None:
        loop.call_soon_threadsafe(held.set)

    stuck.before_settle = tell
    task = asyncio.create_task(relay(client, stuck).run())
    await held.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await relay(client, shop.outbox).drain()
    assert first_copies(await stored(client, topic)) == {key: list(range(10)) for key in "ab"}


def test_pauses_grow_to_a_bound() -> None:
    settings = RelaySettings(retry_pause_ms=100, max_retry_pause_ms=1_000)
    one = Relay(Client("127.0.0.1:1"), Wrapped.__new__(Wrapped), settings)
    assert [one._pause_ms(failures) for failures in (1, 2, 3, 4, 5, 99)] == [
        *(100, 200, 400, 800),
        *(1_000, 1_000),
    ]


@pytest.mark.parametrize(
    "wrong", [{"page_rows": 0}, {"page_rows": "8"}, {"keep_ms": -1}, {"page_ms": 0.5}]
)
def test_settings_without_sense_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        RelaySettings(**wrong)


async def test_the_tables_of_one_database_have_relays_of_their_own(
    client: Client, shop: Shop
) -> None:
    topic = await fresh_topic(client)
    second = Shop(_named(shop.outbox, f"{shop.outbox.table}_second"))
    with second.transaction() as connection:
        for statement in second.outbox.schema():
            connection.execute(statement)
    shop.write(topic, [("a", 1)])
    second.write(topic, [("b", 1)])
    source = shop.outbox.open()
    assert source.take(WantedRows(1, 1, 1)) is not None
    assert await relay(client, second.outbox).drain() == 1
    # The same table, written in another way.
    same = _named(shop.outbox, shop.outbox.table.upper())
    with pytest.raises(OutboxBusy):
        await relay(client, same).drain()
    source.give_up()
    source.close()
