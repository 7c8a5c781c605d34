"""A broker at the limits of what may wait refuses sends, and still serves urgent requests."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cometmq.net import server as servers
from cometmq.net.resources import MemoryBudget
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Head
from tests.broker.serving import SEND, BrokerClient, FailingFiles, running_broker, send_fields
from tests.net.serving import until

BUSY = ResponseCode.SYSTEM_BUSY
QUEUES = [{"brokerName": "b", "queueId": 1, "topic": "t"}]
LOCK = json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": QUEUES}).encode()
BEAT = json.dumps(
    {"clientID": "c", "consumerDataSet": [], "producerDataSet": [{"groupName": "producers"}]}
).encode()
PLACE: dict[str, Any] = {"consumerGroup": "g", "topic": "t", "queueId": "1"}


class StoppedLog(FailingFiles):
    """Files of which the log's are not synced until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def datasync(self, handle: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{handle}"):
            self.go.wait(20)
        super().datasync(handle)


def place_of(stored: Head) -> str:
    """The physical offset of a message that was answered."""
    return str(int(stored.ext["msgId"][16:], 16))


async def code_of(client: BrokerClient, code: int, body: bytes = b"", **ext: Any) -> int:
    head, _ = await client.ask(code, body, **ext)
    return head.code


@pytest.mark.parametrize("shared", [True, False], ids=["of the same connection", "of another"])
async def test_urgent_requests_are_served_while_sends_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    budget = MemoryBudget(256 << 10)
    monkeypatch.setattr(servers, "process_budget", lambda: budget)
    files = StoppedLog()
    settings: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "20000"}
    async with running_broker(tmp_path, files, **settings) as running:
        broker = running.broker
        sender = await running.connect()
        prepared = "UNIQ_KEY\x01H\x02TRAN_MSG\x01true\x02PGROUP\x01p"
        half = await sender.send(b"half", f="4", i=prepared)
        stored = await sender.send()
        assert await code_of(sender, RequestCode.HEART_BEAT, BEAT) == 0
        most = budget.max_waiting(1 << 30)
        files.go.clear()
        try:
            for number in range(most + 1):
                sender.post(SEND, b"waits", **send_fields(i=f"UNIQ_KEY\x01W{number}"))
            await until(lambda: broker.appender.waiting_sends > most)
            budget.tasks += budget.max_tasks  # as many slow requests as may run
            client = sender if shared else await running.connect()
            assert (await client.send()).code == BUSY
            assert await code_of(client, RequestCode.GET_BROKER_CONFIG) == BUSY

            # What changes no log is answered at once.
            assert await code_of(client, RequestCode.HEART_BEAT, BEAT) == 0
            committed: dict[str, Any] = {**PLACE, "commitOffset": "1"}
            assert await code_of(client, RequestCode.UPDATE_CONSUMER_OFFSET, **committed) == 0
            head, _ = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **PLACE)
            assert (head.code, head.ext["offset"]) == (0, "1")
            assert await code_of(client, RequestCode.LOCK_BATCH_MQ, LOCK) == 0
            assert await code_of(client, RequestCode.UNLOCK_BATCH_MQ, LOCK) == 0

            # What is stored is accepted at once, and answered once the disk has it.
            before = broker.store.committed_offset
            client.post(
                RequestCode.END_TRANSACTION,
                producerGroup="p",
                tranStateTableOffset=half.ext["queueOffset"],
                commitLogOffset=place_of(half),
                commitOrRollback="8",
                msgId="H",
            )
            await until(lambda: broker.store.committed_offset > before)
            back: dict[str, Any] = {"offset": place_of(stored), "group": "g", "delayLevel": "3"}
            allowed = budget.max_urgent_tasks - budget.max_tasks
            before = broker.store.committed_offset
            for _ in range(allowed):
                client.post(RequestCode.CONSUMER_SEND_MSG_BACK, **back)
            await until(lambda: budget.tasks == budget.max_urgent_tasks)
            await until(lambda: broker.store.committed_offset > before)
            # They have a bound of their own.
            assert await code_of(client, RequestCode.CONSUMER_SEND_MSG_BACK, **back) == BUSY
        finally:
            files.go.set()
        answers = 1 + allowed + (most + 1 if shared else 0)
        assert {(await client.frame())[0].code for _ in range(answers)} == {0}
        budget.tasks -= budget.max_tasks
        assert (await client.send()).code == 0
        await until(lambda: budget.tasks == 0)
