"""Commands that need a consumer, a producer or a broker's files, run on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cometmq import BlockingClient
from cometmq.admin.api import Admin
from cometmq.cli.main import main
from cometmq.testing.cluster import Cluster, cluster_in_thread
from tests.compat.anchor import wait_until

#: A producer that ends within its transaction.
SHOP = """\
import asyncio, os, sys, cometmq

async def main():
    async with cometmq.Client(sys.argv[1]) as client:
        async with client.transaction("orders", b"half", keys=["A-1"], group="shop"):
            os._exit(0)

asyncio.run(main())
"""


class Shell:
    """Runs commands on a cluster."""

    def __init__(self, namesrv: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._namesrv = namesrv
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> str:
        """Return the output of a command; standard error if it fails."""
        self._capsys.readouterr()
        given = main([*words, "-n", self._namesrv])
        shown = self._capsys.readouterr()
        assert given == code, shown
        return shown.err if code else shown.out

    def rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    checks = {"transaction_timeout": 1, "transaction_check_interval": 50}
    with cluster_in_thread(tmp_path, transaction_check_max=1, **checks) as cluster:
        yield cluster


def test_a_message_is_delivered_by_hand(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(cluster.namesrv, capsys)
    with BlockingClient(cluster.namesrv, offset_persist_interval_ms=50) as client:
        client.wait(Admin(client.inner.session).create_topic("orders", queues=1))
        sent = client.send("orders", b"again", keys=["A-1"])
        deliver = ["message", "deliver", "orders", sent.message_id, "--group", "billing"]
        assert "billing" in shell.run(*deliver, code=1)  # nobody is there
        taken: list[bytes] = []
        subscription = client.subscribe("orders", group="billing", start="first")

        def work() -> None:
            for message in subscription:
                with message.processing():
                    taken.append(message.body)

        worker = Thread(target=work)
        worker.start()
        try:
            wait_until(lambda: taken == [b"again"], "the message", 30)
            (row,) = shell.rows(*deliver)
            assert (row["id"], row["group"], row["result"]) == (
                sent.message_id, "billing", "CR_SUCCESS",
            )  # fmt: skip
            (member,) = shell.rows("group", "members", "billing")
            line = shell.run(*deliver, "--client-id", member["client_id"])
            assert line.startswith(f"delivered id={sent.message_id} group=billing result=CR_SUCC")
            assert taken == [b"again"] * 3
            assert "nobody" in shell.run(*deliver, "--client-id", "nobody", code=1)
        finally:
            subscription.close()
            worker.join()
        (queue,) = shell.rows("group", "lag", "billing", "--topic", "orders")
        assert (queue["consumer_offset"], queue["lag"]) == (1, 0)


def test_a_transaction_that_was_given_up_is_resumed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(cluster.namesrv, capsys)
    shell.run("topic", "create", "orders", "--queues", "1")
    subprocess.run([sys.executable, "-c", SHOP, cluster.namesrv], check=True, timeout=60)
    given_up = ["transaction", "list", "--given-up"]
    wait_until(lambda: len(shell.rows(*given_up)) == 1, "the end of the checks", 30)
    (row,) = shell.rows(*given_up)
    assert (row["topic"], row["producer_group"], row["keys"]) == ("orders", "shop", ["A-1"])
    assert shell.rows("transaction", "list") == []
    told = shell.run("transaction", "resume", row["id"], "NOPE", code=1)
    assert told.startswith("cometmq transaction: no transaction that was given up has id NOPE")
    with BlockingClient(cluster.namesrv) as client:
        client.transaction_checker("shop")(lambda message: True)
        line = shell.run("transaction", "resume", row["id"])
        assert line.startswith("resumed topic=orders ")
        assert f"id={row['id']}" in line
        browse = ["message", "browse", "orders", "-f", "%k %v\\n"]
        wait_until(lambda: shell.run(*browse) == "A-1 half\n", "the commit", 30)


def test_a_broker_is_cleaned(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in use stays; what is deleted is tested with the broker's own requests."""
    shell = Shell(cluster.namesrv, capsys)
    shell.run("topic", "create", "kept", "--queues", "1")
    shell.run("send", "kept", "1")
    refused = shell.run("broker", "clean", "--topics", code=2)
    assert "queues of topics that are gone of all brokers? This cannot be undone" in refused
    shown = shell.run("broker", "clean", "--topics", "--log", "--yes").splitlines()
    assert shown == [f"cleaned server=broker-a address={cluster.broker}"] * 3
    assert "broker 'broker-z': no broker with this name" in shell.run(
        "broker", "clean", "--broker", "broker-z", "--yes", code=1
    )
    assert shell.run("message", "browse", "kept", "-f", "%v\\n") == "1\n"
