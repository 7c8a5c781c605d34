"""The looker beside a broker: nothing is lost when it dies, and it ends with the broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker import looker as module
from cometmq.broker import pull
from cometmq.message import properties
from cometmq.message.record import Record
from cometmq.protocol.codes import RequestCode
from tests.broker.lookers import (
    LENGTH,
    WAIT_S,
    fill,
    is_alive,
    looked_at,
    pid_of,
    until,
)
from tests.broker.serving import SMALL, BrokerClient, RunningBroker, running_broker
from tests.store.stores import opened


@pytest.fixture
def second_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "is_useful", lambda: True)


async def pulled(
    client: BrokerClient, expression: str, start: int = 0, stop: int = LENGTH
) -> AsyncIterator[list[Record]]:
    """Answer by answer what matches, up to ``stop``."""
    while start < stop:
        head, records = await client.pull(
            start, subscription=expression, expressionType="SQL92", subVersion="1"
        )
        assert head.code in (0, 20)
        yield records
        start = int(head.ext["nextBeginOffset"])


async def numbers_of(client: BrokerClient, expression: str) -> list[int]:
    answers = [records async for records in pulled(client, expression)]
    found = [properties.decode(record.properties) for records in answers for record in records]
    return [int(each["n"]) for each in found]


async def begun(running: RunningBroker) -> tuple[BrokerClient, list[dict[str, str]]]:
    client = await running.connect()
    await client.send()  # makes the topic
    store = running.broker.store
    made = fill(store, "t", LENGTH - 1)
    return client, [{}, *made]


@pytest.mark.usefixtures("second_processor")
async def test_killed_under_load_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_REST_MS", 1)
    monkeypatch.setattr(module, "MAX_REST_MS", 1)
    async with running_broker(tmp_path) as running:
        client, messages = await begun(running)
        looker = running.broker.pull.looker
        assert looker is not None
        killed: set[int] = set()
        deadline = time.monotonic() + WAIT_S
        for number in range(1, 1_000):
            expression = f"n >= {number} AND a = 'eu'"
            found = []
            async for records in pulled(client, expression):
                found += [int(properties.decode(each.properties)["n"]) for each in records]
                pid = pid_of(looker)
                if pid and pid not in killed and looked_at(looker):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            wanted = [
                int(each["n"])
                for each in messages
                if each.get("a") == "eu" and int(each["n"]) >= number
            ]
            assert found == wanted
            if len(killed) >= 3:
                break
            assert time.monotonic() < deadline
        await until(
            lambda: caplog.messages.count("looker_ended code=-9") >= 3, "lines about the deaths"
        )


@pytest.mark.usefixtures("second_processor")
async def test_a_queue_that_is_made_anew_while_it_is_looked_at(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client, _ = await begun(running)
        looker = running.broker.pull.looker
        assert looker is not None
        await numbers_of(client, "a = 'eu'")
        await until(lambda: pid_of(looker) > 0, "the looker")
        pid = pid_of(looker)
        os.kill(pid, signal.SIGSTOP)
        before = looked_at(looker)
        expression = "a IN ('eu', 'x')"
        async for _ in pulled(client, expression, stop=1_000):
            pass
        head, _ = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        assert head.code == 0
        await client.send()
        messages = [{}, *fill(running.broker.store, "t", LENGTH - 1, seed=1)]
        os.kill(pid, signal.SIGCONT)
        assert await numbers_of(client, expression) == [
            int(each["n"]) for each in messages if each.get("a") in ("eu", "x")
        ]
        assert await numbers_of(client, "b = 'us'") == [
            int(each["n"]) for each in messages if each.get("b") == "us"
        ]
        await until(lambda: looked_at(looker) > before, "an answer of the looker")


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, filterLookahead="false") as running:
        assert running.broker.pull.looker is None


BROKER = """
import sys
import cometmq.broker.pull as pull
pull.is_useful = lambda: True
from cometmq.cli.main import main
sys.argv[0] = "cometmq"
main()
"""


def child_of(pid: int) -> int:
    """The looker of a broker; 0 when it has none."""
    for found in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((found / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == pid and b"cometmq.store.tools.look" in (found / "cmdline").read_bytes():
                return int(found.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return 0


async def test_a_broker_that_is_killed_leaves_none(tmp_path: Path) -> None:
    small = [f"{key}={value}" for key, value in SMALL.items()]
    words = ["--store", str(tmp_path / "store"), "--namesrv-port", "0", "--broker-port", "0"]
    for each in small:
        words += ["--set", each]
    store = opened(
        tmp_path / "store",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=60_000,
        max_hash_slot_num=1_000,
        max_index_num=4_000,
    )
    fill(store, "t", LENGTH)
    store.close()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BROKER, "start", *words), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        port = int(line.partition("broker=")[2].split()[0].rpartition(":")[2])
        client = BrokerClient(*await asyncio.open_connection("127.0.0.1", port))
        pid = number = 0
        deadline = time.monotonic() + WAIT_S
        while not pid:
            assert time.monotonic() < deadline
            number += 1
            await numbers_of(client, f"n > {number}")
            pid = child_of(process.pid)
        client.writer.close()
    finally:
        process.kill()
        await process.wait()
    await until(lambda: not is_alive(pid), "the end of the looker")


@pytest.fixture(autouse=True)
def _only_ours(caplog: pytest.LogCaptureFixture) -> None:
    """What is logged counts from warnings on."""
    caplog.set_level(logging.WARNING)
