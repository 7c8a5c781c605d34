"""What tests of the outbox share: applications that write to it, and what may never happen."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from cometmq.client.client import Client
from cometmq.message.model import Message, StoredMessage
from cometmq.outbox.postgres import PostgresOutbox
from cometmq.outbox.sqlite import SqliteOutbox
from cometmq.outbox.table import Outbox


@dataclass(frozen=True, slots=True)
class Shop:
    """An application with an outbox."""

    outbox: Outbox

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection of the application's, for one transaction."""
        if isinstance(self.outbox, SqliteOutbox):
            with closing(sqlite3.connect(self.outbox.path, timeout=30)) as simple, simple:
                yield simple
        else:
            assert isinstance(self.outbox, PostgresOutbox)
            with psycopg.connect(self.outbox.conninfo) as connection:
                yield connection

    def write(self, topic: str, numbered: Iterable[tuple[str | None, int]]) -> list[int]:
        """Put messages into the outbox, all in one transaction; each is its order key and its
        number. Gives the ids of the rows."""
        with self.transaction() as connection:
            return [
                self.outbox.add(connection, Message(topic, body(key, number)), order_key=key)
                for key, number in numbered
            ]


def body(key: str | None, number: int) -> bytes:
    """A body that says where a message belongs."""
    return f"{key or ''}:{number}".encode()


def keyed(keys: Sequence[str], count: int, start: int = 0) -> list[tuple[str | None, int]]:
    """``count`` messages a key, numbered from ``start``, keys in turn."""
    return [(key, number) for number in range(start, start + count) for key in keys]


async def stored(client: Client, topic: str) -> list[StoredMessage]:
    """All that the topic holds, each queue in its order."""
    found: list[StoredMessage] = []
    for queue in await client.queues(topic):
        start = await client.puller.min_offset(queue)
        end = await client.puller.max_offset(queue)
        async for messages in client.puller.read_range(queue, start, end):
            found += messages
    return found


def first_copies(messages: Iterable[StoredMessage]) -> dict[str, list[int]]:
    """The numbers of each key's messages in the order they were stored, repeats left out.

    Fails when one message has two ids, or two have one.
    """
    ids: dict[bytes, str] = {}
    numbers: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        if ids.setdefault(message.body, message.message_id) != message.message_id:
            raise AssertionError(f"{message.body!r} has two ids")
        key, _, number = message.body.decode().partition(":")
        if int(number) not in numbers[key]:
            numbers[key].append(int(number))
    assert len(set(ids.values())) == len(ids)
    return dict(numbers)
