"""What only PostgreSQL can do to an outbox: transactions that overlap, connections that end."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import psycopg
import pytest

from cometmq.client.client import Client
from cometmq.core.errors import SettingsError
from cometmq.message.model import Message
from cometmq.outbox.postgres import PostgresOutbox
from cometmq.outbox.relay import Relay, RelaySettings
from cometmq.outbox.row import Settled, WantedRows
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.outbox.boxes import Shop, body, first_copies, stored

WANTED = WantedRows(rows=100, page_bytes=1 << 20, largest_bytes=1 << 20)


def ids_of(outbox: PostgresOutbox) -> list[int]:
    """What a relay would take now."""
    source = outbox.open()
    page = source.take(WANTED)
    assert page is not None
    source.give_up()
    source.close()
    return [row.id for row in page.rows]


@pytest.fixture
def outbox(postgres_shop: Shop) -> PostgresOutbox:
    assert isinstance(postgres_shop.outbox, PostgresOutbox)
    return postgres_shop.outbox


def test_a_row_committed_late_is_taken_late_and_not_passed_over(outbox: PostgresOutbox) -> None:
    with psycopg.connect(outbox.conninfo) as slow:
        late = outbox.add(slow, Message("t", b"late"), order_key="a")
        with psycopg.connect(outbox.conninfo) as quick:
            early = outbox.add(quick, Message("t", b"early"), order_key="b")
        assert late < early
        source = outbox.open()
        page = source.take(WANTED)
        assert page is not None
        assert [row.id for row in page.rows] == [early]
        source.settle(Settled({early: ""}, {}, now_ms=1))
        source.close()
    assert ids_of(outbox) == [late]


async def test_ids_of_a_key_are_in_the_order_of_its_commits(outbox: PostgresOutbox) -> None:
    """The second transaction waits for the first, and only for that of its own key."""

    def add(key: str) -> int:
        with psycopg.connect(outbox.conninfo) as connection:
            return outbox.add(connection, Message("t", key.encode()), order_key=key)

    def somebody_waits() -> bool:
        with psycopg.connect(outbox.conninfo) as connection:
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            return bool(connection.execute(waiting).fetchall()[0][0])

    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(outbox.conninfo) as connection:
            first = outbox.add(connection, Message("t", b"first"), order_key="a")
            second = pool.submit(add, "a")
            await eventually(somebody_waits)
            other = add("b")
            assert not second.done()
        assert first < other < second.result(60)


async def test_a_relay_whose_connection_ends_goes_on(client: Client, postgres_shop: Shop) -> None:
    topic = await fresh_topic(client)
    outbox = postgres_shop.outbox
    assert isinstance(outbox, PostgresOutbox)
    settings = RelaySettings(retry_pause_ms=1, poll_interval_ms=1)
    async with Relay(client, outbox, settings) as relay:
        for number in range(3):
            postgres_shop.write(topic, [("a", number)])
            await eventually(lambda at=number: relay.published == at + 1)  # type: ignore[misc]
            with psycopg.connect(outbox.conninfo, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
    assert first_copies(await stored(client, topic)) == {"a": [0, 1, 2]}


async def test_writers_at_once_and_relays_at_once_keep_each_keys_order(
    client: Client, postgres_shop: Shop
) -> None:
    """Each key's number comes from a row that its transaction changes, as an application's does."""
    topic = await fresh_topic(client)
    outbox = postgres_shop.outbox
    assert isinstance(outbox, PostgresOutbox)
    keys = [f"k{number}" for number in range(5)]
    counters = f"{outbox.table}_counters"
    with psycopg.connect(outbox.conninfo) as connection:
        connection.execute(f"CREATE TABLE {counters} (key TEXT PRIMARY KEY, number INT)")
        for key in keys:
            connection.execute(f"INSERT INTO {counters} VALUES (%s, 0)", (key,))

    def write(seed: int) -> None:
        random = Random(seed)
        with psycopg.connect(outbox.conninfo, autocommit=True) as connection:
            for _ in range(40):
                key = random.choice(keys)
                with connection.transaction(force_rollback=random.random() < 0.2):
                    [(number,)] = connection.execute(
                        f"UPDATE {counters} SET number = number + 1 WHERE key = %s "
                        "RETURNING number",
                        (key,),
                    ).fetchall()
                    outbox.add(connection, Message(topic, body(key, number)), order_key=key)

    settings = RelaySettings(page_rows=7, poll_interval_ms=1)
    relays = [Relay(client, outbox, settings) for _ in range(3)]
    async with relays[0], relays[1], relays[2]:
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(write, seed) for seed in range(4)]
            await eventually(lambda: all(each.done() for each in done), deadline_s=120)
            for each in done:
                each.result()
        await eventually(lambda: outbox.status().waiting == 0, deadline_s=120)
    with psycopg.connect(outbox.conninfo) as connection:
        counted = connection.execute(f"SELECT key, number FROM {counters}").fetchall()
    last: dict[str, int] = dict(counted)
    found = await stored(client, topic)
    assert first_copies(found) == {key: list(range(1, last[key] + 1)) for key in keys}
    assert len(found) == sum(last.values())


def test_a_table_in_a_schema(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
    outbox = PostgresOutbox(postgres, "shop.outbox")
    outbox.create()
    with psycopg.connect(postgres) as connection:
        row_id = outbox.add(connection, Message("t", b"x"), order_key="a")
    assert ids_of(outbox) == [row_id]


def test_logs_name_no_password() -> None:
    outbox = PostgresOutbox("postgresql://me:secret@db.example/shop")
    assert outbox.name == "db.example/shop:outbox"


def test_without_psycopg_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingsError, match=r"cometmq\[postgres\]"):
        PostgresOutbox("dbname=x")
