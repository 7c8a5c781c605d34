"""Rows written over the connections of SQLAlchemy, Django, asyncpg and psycopg: in the program's
own transaction, and with it undone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from cometmq.client.client import Client
from cometmq.core.errors import MessageIllegal, NotOpen, WrongArgument
from cometmq.message.model import Message
from cometmq.outbox.connections import numbered
from cometmq.outbox.postgres import PostgresOutbox
from cometmq.outbox.relay import Relay
from cometmq.outbox.sqlite import SqliteOutbox
from cometmq.outbox.table import Outbox
from tests.client.shared_broker import fresh_topic
from tests.outbox.boxes import Shop, stored

KEPT, UNDONE = Message("t", b"kept", tag="a%sb?"), Message("t", b"undone")


class Undone(Exception):
    """Ends a transaction or a savepoint."""


def bodies(outbox: Outbox) -> list[bytes]:
    """What the outbox holds."""
    rows, _ = outbox._query((f"SELECT body FROM {outbox.table} ORDER BY id", ()))
    return [bytes(body) for (body,) in rows]


@pytest.fixture
def engine(shop: Shop) -> Iterator[sqlalchemy.Engine]:
    outbox = shop.outbox
    if isinstance(outbox, SqliteOutbox):
        made = sqlalchemy.create_engine(f"sqlite:///{outbox.path}")
    else:
        assert isinstance(outbox, PostgresOutbox)
        made = sqlalchemy.create_engine(address("psycopg", outbox.conninfo))
    yield made
    made.dispose()


def address(driver: str, conninfo: str) -> sqlalchemy.URL:
    """SQLAlchemy's address of the database."""
    host = conninfo.split()[0].removeprefix("host=")
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", "postgres", database="postgres", query={"host": host}
    )


def test_a_connection_of_sqlalchemy(shop: Shop, engine: sqlalchemy.Engine) -> None:
    outbox = shop.outbox
    with suppress(Undone), engine.begin() as connection:
        outbox.add(connection, UNDONE, order_key="a")
        raise Undone
    with engine.begin() as connection:
        first = outbox.add(connection, KEPT)
        with suppress(Undone), connection.begin_nested():
            outbox.add(connection, UNDONE)
            raise Undone
        with connection.begin_nested():
            second = outbox.add(connection, KEPT, order_key="a")
    assert bodies(outbox) == [b"kept", b"kept"]
    assert first < second


def test_a_session_flushes_before_the_row(shop: Shop, engine: sqlalchemy.Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = f"{shop.outbox.table}_orders"
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        order = Order()
        session.add(order)
        shop.outbox.add(session, KEPT, order_key="a")
        assert order.id is not None
        with suppress(Undone), session.begin_nested():
            session.add(Order())
            shop.outbox.add(session, UNDONE)
            raise Undone
    with suppress(Undone), Session(engine) as session, session.begin():
        shop.outbox.add(session, UNDONE)
        raise Undone
    with Session(engine) as session:
        assert session.scalars(sqlalchemy.select(Order.id)).all() == [1]
    assert bodies(shop.outbox) == [b"kept"]


@pytest.fixture
def outbox(postgres_shop: Shop) -> PostgresOutbox:
    assert isinstance(postgres_shop.outbox, PostgresOutbox)
    return postgres_shop.outbox


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_async_sqlalchemy(outbox: PostgresOutbox, driver: str) -> None:
    engine = create_async_engine(address(driver, outbox.conninfo))
    try:
        async with engine.begin() as connection:
            await outbox.add_async(connection, KEPT)
        async with AsyncSession(engine) as session, session.begin():
            await outbox.add_async(session, KEPT, order_key="a")
            with suppress(Undone):
                async with session.begin_nested():
                    await outbox.add_async(session, UNDONE)
                    raise Undone
        with suppress(Undone):
            async with AsyncSession(engine) as session, session.begin():
                await outbox.add_async(session, UNDONE, order_key="a")
                raise Undone
        async with engine.connect() as connection:
            with pytest.raises(WrongArgument, match="add_async"):
                outbox.add(connection, KEPT)
    finally:
        await engine.dispose()
    assert bodies(outbox) == [b"kept", b"kept"]


@pytest.fixture
async def pool(outbox: PostgresOutbox) -> AsyncIterator[Any]:
    host = outbox.conninfo.split()[0].removeprefix("host=")
    async with asyncpg.create_pool(
        host=host, user="postgres", database="postgres", min_size=1
    ) as made:
        yield made


async def test_asyncpg(outbox: PostgresOutbox, pool: Any) -> None:
    async with pool.acquire() as connection:
        with pytest.raises(NotOpen, match="transaction"):
            await outbox.add_async(connection, UNDONE)
        with pytest.raises(WrongArgument, match="add_async"):
            outbox.add(connection, UNDONE)
        with suppress(Undone):
            async with connection.transaction():
                await outbox.add_async(connection, UNDONE, order_key="a")
                raise Undone
        async with connection.transaction():
            await outbox.add_async(connection, KEPT)
            await outbox.add_async(connection, KEPT, order_key="a")
            with suppress(Undone):
                async with connection.transaction():
                    await outbox.add_async(connection, UNDONE)
                    raise Undone
    assert bodies(outbox) == [b"kept", b"kept"]


async def test_async_psycopg(outbox: PostgresOutbox) -> None:
    async with await psycopg.AsyncConnection.connect(
        outbox.conninfo, row_factory=psycopg.rows.dict_row
    ) as connection:
        row_id = await outbox.add_async(connection, KEPT, order_key="a")
    assert row_id == 1
    with (
        closing(psycopg.connect(outbox.conninfo)) as other,
        pytest.raises(WrongArgument, match="must be of asyncpg"),
    ):
        await outbox.add_async(other, KEPT)
    assert bodies(outbox) == [b"kept"]


async def test_what_commits_is_published_once(
    client: Client, shop: Shop, engine: sqlalchemy.Engine
) -> None:
    topic = await fresh_topic(client)
    for number in range(20):
        with engine.connect() as connection:
            message = Message(topic, b"%d" % number, tag="a%sb?")
            shop.outbox.add(connection, message, order_key=number % 3)
            if number % 2:
                connection.commit()
    await Relay(client, shop.outbox).drain()
    found = await stored(client, topic)
    assert sorted(int(each.body) for each in found) == list(range(1, 20, 2))
    assert {each.tag for each in found} == {"a%sb?"}
    assert bodies(shop.outbox) == []


def test_an_illegal_message_is_told_in_the_transaction(
    shop: Shop, engine: sqlalchemy.Engine
) -> None:
    with engine.begin() as connection, pytest.raises(MessageIllegal):
        shop.outbox.add(connection, Message("no topic!", b""))


def test_a_migration_runs_the_statements_one_by_one(shop: Shop, engine: sqlalchemy.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {shop.outbox.table}")
        for statement in [*shop.outbox.schema(), *shop.outbox.schema()]:
            connection.exec_driver_sql(statement)
        shop.outbox.add(connection, KEPT)
    assert bodies(shop.outbox) == [b"kept"]


DJANGO = """
import sys
import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
import cometmq

kind, place, table = sys.argv[1:]
database = {"ENGINE": f"django.db.backends.{kind}"}
if kind == "sqlite3":
    database |= {"NAME": place}
    outbox = cometmq.SqliteOutbox(place, table)
else:
    host = place.split()[0].removeprefix("host=")
    database |= {"NAME": "postgres", "USER": "postgres", "HOST": host}
    outbox = cometmq.PostgresOutbox(place, table)
settings.configure(DATABASES={"default": database}, USE_TZ=True)
django.setup()

from django.db import connection, connections, transaction

class Undone(Exception): pass

def undone(using):
    try:
        with transaction.atomic():
            outbox.add(using, cometmq.Message("t", b"undone"))
            raise Undone
    except Undone:
        pass

try:
    outbox.add(connection, cometmq.Message("t", b"undone"))
except cometmq.NotOpen as error:
    assert "atomic" in str(error)
else:
    raise AssertionError("added without a transaction")
undone(connection)
with transaction.atomic():
    outbox.add(connection, cometmq.Message("t", b"kept", tag="a%sb?"))
    undone(connections["default"])  # a savepoint
    outbox.add(connections["default"], cometmq.Message("t", b"kept"), order_key="a")
connection.close()
"""


def test_django(shop: Shop) -> None:
    outbox = shop.outbox
    if isinstance(outbox, SqliteOutbox):
        words = ["sqlite3", str(outbox.path)]
    else:
        assert isinstance(outbox, PostgresOutbox)
        words = ["postgresql", outbox.conninfo]
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, *words, outbox.table],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert bodies(outbox) == [b"kept", b"kept"]


def test_placeholders_are_numbered() -> None:
    assert numbered("VALUES (%s, %s::json)") == "VALUES ($1, $2::json)"


def test_the_outbox_imports_no_other_library() -> None:
    code = "import cometmq.outbox, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"sqlalchemy", "django", "asyncpg", "psycopg"} & set(done.stdout.split())


async def test_a_row_is_refused_where_it_would_commit_alone(
    shop: Shop, engine: sqlalchemy.Engine
) -> None:
    outbox = shop.outbox
    if isinstance(outbox, SqliteOutbox):
        with closing(sqlite3.connect(outbox.path, isolation_level=None)) as simple:
            with pytest.raises(NotOpen, match="BEGIN"):
                outbox.add(simple, UNDONE)
            simple.execute("BEGIN")
            outbox.add(simple, KEPT)
            simple.execute("COMMIT")
    else:
        assert isinstance(outbox, PostgresOutbox)
        with psycopg.connect(outbox.conninfo, autocommit=True) as connection:
            with pytest.raises(NotOpen, match="transaction"):
                outbox.add(connection, UNDONE)
            with connection.transaction():
                outbox.add(connection, KEPT)
        async with await psycopg.AsyncConnection.connect(
            outbox.conninfo, autocommit=True
        ) as asynchronous:
            with pytest.raises(NotOpen, match="transaction"):
                await outbox.add_async(asynchronous, UNDONE)
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alone,
        pytest.raises(NotOpen, match="AUTOCOMMIT"),
    ):
        outbox.add(alone, UNDONE)
    assert bodies(outbox) == [b"kept"]
