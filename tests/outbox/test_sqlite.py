"""What only SQLite does: the lock file, and applications that write while a relay works."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.outbox.row import WantedRows
from cometmq.outbox.sqlite import SqliteOutbox
from tests.outbox.boxes import Shop

WANTED = WantedRows(rows=10, page_bytes=1 << 20, largest_bytes=1 << 20)

HOLD = """
import sys
from cometmq.outbox import SqliteOutbox
from cometmq.outbox.row import WantedRows
source = SqliteOutbox(sys.argv[1]).open()
print(source.take(WantedRows(1, 1, 1)) is not None, flush=True)
sys.stdin.read()
"""


def path_of(shop: Shop) -> Path:
    assert isinstance(shop.outbox, SqliteOutbox)
    return shop.outbox.path


def test_the_lock_ends_with_its_process(sqlite_shop: Shop) -> None:
    sqlite_shop.write("t", [("a", 1)])
    command = [sys.executable, "-c", HOLD, str(path_of(sqlite_shop))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        source = sqlite_shop.outbox.open()
        assert source.take(WANTED) is None
        holder.kill()
        holder.wait()
    page = source.take(WANTED)
    assert page is not None
    assert len(page.rows) == 1
    source.close()


def test_an_application_writes_while_a_page_is_out(sqlite_shop: Shop) -> None:
    sqlite_shop.write("t", [("a", 1)])
    source = sqlite_shop.outbox.open()
    assert source.take(WANTED) is not None
    sqlite_shop.write("t", [("a", 2)])
    page = source.take(WANTED)
    assert page is not None
    assert len(page.rows) == 2
    source.close()


def test_plain_sql_writes_rows_too(sqlite_shop: Shop) -> None:
    with sqlite3.connect(path_of(sqlite_shop)) as connection:
        connection.execute("INSERT INTO outbox (topic, body) VALUES ('t', X'01')")
    connection.close()
    source = sqlite_shop.outbox.open()
    page = source.take(WANTED)
    assert page is not None
    assert page.rows[0].message().body == b"\x01"
    source.close()


def test_a_lock_file_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "x-relay").mkdir()
    with pytest.raises(sqlite3.OperationalError):
        SqliteOutbox(tmp_path / "x").open()
