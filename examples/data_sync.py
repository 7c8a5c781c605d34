"""Keeps a copy of a table in step with it, and equal at the end despite repeats and retries."""

import asyncio
import json
import sqlite3
import sys
import tempfile
from pathlib import Path

import cometmq

TOPIC = "region-changes"
CHANGES = (("AD-02", "Canilo"), ("AD-03", "Encamp"), ("AD-02", "Canillo"))
ROWS = "SELECT code, name FROM regions ORDER BY code"


def change(base: sqlite3.Connection, outbox: cometmq.SqliteOutbox, code: str, name: str) -> None:
    """Change a row and write the message about it, in one transaction."""
    with base:
        [(version,)] = base.execute(
            "INSERT INTO regions VALUES (?, ?, 1) ON CONFLICT (code) "
            "DO UPDATE SET name = excluded.name, version = version + 1 RETURNING version",
            (code, name),
        ).fetchall()
        body = json.dumps({"code": code, "name": name, "version": version}).encode()
        outbox.add(base, cometmq.Message(TOPIC, body, keys=(code,)), order_key=code)


def apply(copy: sqlite3.Connection, body: bytes) -> bool:
    """Apply a change unless the copy has a newer one, so that repeats and late retries do no
    harm."""
    with copy:
        done = copy.execute(
            "INSERT INTO regions VALUES (:code, :name, :version) ON CONFLICT (code) "
            "DO UPDATE SET name = excluded.name, version = excluded.version "
            "WHERE excluded.version > version",
            json.loads(body),
        )
    return done.rowcount == 1


def database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE regions (code TEXT PRIMARY KEY, name TEXT, version INT)")
    return connection


async def follow(client: cometmq.Client, copy: sqlite3.Connection) -> None:
    """Receive every change and apply it to the copy."""
    left = len(CHANGES)
    async with client.subscribe(TOPIC, group="copy", start="first") as changes:
        async for message in changes:
            async with message.processing():
                apply(copy, message.body)
            left -= 1
            if not left:
                return


async def main(folder: Path, name_server: str = "127.0.0.1:9876") -> None:
    base, copy = database(folder / "base.sqlite"), database(folder / "copy.sqlite")
    outbox = cometmq.SqliteOutbox(folder / "base.sqlite")
    outbox.create(base)

    for code, name in CHANGES:
        change(base, outbox, code, name)  # needs no broker
    print(f"{outbox.status().waiting} messages wait")

    async with cometmq.Client(name_server) as client:
        await cometmq.Admin(client.session).create_topic(TOPIC)
        async with cometmq.Relay(client, outbox):  # publishes while the block runs
            await follow(client, copy)
    print(f"{outbox.status().waiting} messages wait")

    for row in copy.execute(ROWS):
        print("copy:", *row)
    print("equal:", copy.execute(ROWS).fetchall() == base.execute(ROWS).fetchall())
    base.close()
    copy.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place), *sys.argv[1:]))
