"""An outbox from the command line: published by a process of its own, looked at, decided about."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cometmq.cli.commands.outbox import outbox_at
from cometmq.cli.main import main
from cometmq.message.model import Message
from cometmq.outbox import PostgresOutbox, SqliteOutbox
from cometmq.testing.cluster import Cluster


@pytest.fixture
def outbox(tmp_path: Path) -> SqliteOutbox:
    outbox = SqliteOutbox(tmp_path / "shop.sqlite")
    outbox.create()
    with closing(sqlite3.connect(outbox.path)) as connection, connection:
        outbox.add(connection, Message("orders", b"1"), order_key="A17")
        connection.execute(
            "INSERT INTO outbox (topic, headers, body) VALUES ('t', '{\"a\":1}', X'')"
        )
    connection.close()
    return outbox


def test_a_relay_publishes_until_it_is_stopped(
    outbox: SqliteOutbox, cometmq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["outbox", "relay", str(outbox.path), "-n", cometmq_cluster.namesrv, "--create"]
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq.cli", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready outbox={outbox.name}\n"
        while outbox.status().waiting:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "stopped published=1 refused=1\n"
        assert process.wait(60) == 0

    where = str(outbox.path)
    assert main(["outbox", "status", where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3:2]] == [["waiting:", "0"], ["refused:", "1"]]
    assert lines[-1].split()[:3] == ["2", "t", "-"]
    assert "unknown headers ['a']; allowed" in lines[-1]
    assert main(["outbox", "retry", where, "2"]) == 0
    assert main(["outbox", "retry", where, "2"]) == 1
    assert capsys.readouterr().err == "cometmq outbox: row 2 is not refused\n"
    assert main(["outbox", "status", where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waiting"] == 1
    assert main(["outbox", "discard", where, "2"]) == 1
    capsys.readouterr()
    with closing(sqlite3.connect(where)) as database, database:
        database.execute("UPDATE outbox SET refused = 'why' WHERE id = 2")
    assert main(["outbox", "discard", where, "2"]) == 2
    assert "This cannot be undone: add --yes" in capsys.readouterr().err
    assert main(["outbox", "discard", where, "2", "--yes"]) == 0
    assert outbox.status().refused == 0


#: Runs a command, and gets the stop signals again once it has ended.
SIGNALLED_AT_ITS_END = """
import os, sys
from cometmq.cli.main import main

code = main(sys.argv[1:])
for number in (15, 2):
    os.kill(os.getpid(), number)
sys.exit(code)
"""


def test_signals_in_the_last_moments_do_not_change_the_exit_code(
    outbox: SqliteOutbox, cometmq_cluster: Cluster
) -> None:
    words = ["outbox", "relay", str(outbox.path), "-n", cometmq_cluster.namesrv]
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALLED_AT_ITS_END, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready outbox={outbox.name}\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().startswith("stopped published=")
        assert process.wait(60) == 0


def test_a_database_that_has_no_outbox_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["outbox", "status", str(tmp_path / "x.sqlite")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such table: outbox" in line
    assert main(["outbox", "status", "x", "--table", "a b"]) == 2


def test_an_address_means_postgresql() -> None:
    assert isinstance(outbox_at("postgresql://host/shop", "outbox"), PostgresOutbox)
    assert isinstance(outbox_at("shop.sqlite", "outbox"), SqliteOutbox)
