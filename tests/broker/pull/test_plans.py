"""Plans of plain pulls over a socket: whatever decides what becomes of a pull is noticed by the
next one, though pulls of its kind were answered by a plan before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.pull import handler
from cometmq.broker.pull.handler import PullPlans
from cometmq.core.errors import BadRequest
from cometmq.net.peer import Peer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from cometmq.speedups.plain.pullanswers import PullPlan
from tests.broker.pull.test_handler import fill
from tests.broker.serving import BrokerClient, RunningBroker, running_broker

# Plain Python serves each pull by itself.
pytestmark = pytest.mark.compiled
TAGGED: dict[str, Any] = {"sysFlag": "0", "subVersion": "5"}
CODES = {"red": 112785, "blue": 3027034}


class Made:
    """Counts the plans that are made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.plans = 0
        plan_of = PullPlans.plan_of

        def counting(plans: PullPlans, fields: Any) -> PullPlan | None:
            plan = plan_of(plans, fields)
            self.plans += plan is not None
            return plan

        patch.setattr(PullPlans, "plan_of", counting)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


@asynccontextmanager
async def planned(
    directory: Path, made: Made, **fields: Any
) -> AsyncIterator[tuple[RunningBroker, BrokerClient]]:
    """A broker with two messages, red and blue, which answers pulls by one plan."""
    async with running_broker(directory, autoCreateSubscriptionGroup="false") as running:
        client = await running.connect()
        await fill(client, 2, ("red", "blue"))
        await put_group(client)
        if fields:
            await subscribe(client, "red")
        for _ in range(3):
            head, _ = await client.pull(**fields)
            assert head.code == 0
        assert made.plans == 1
        yield running, client


async def ask(client: BrokerClient, code: int, body: Any = b"", **fields: Any) -> None:
    """Ask for a change, and wait for it."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    answer, _ = await client.ask(code, data, **fields)
    while answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        answer, _ = await client.frame()
    assert answer.code == 0, answer


async def put_group(client: BrokerClient, **fields: Any) -> None:
    group = {"groupName": "g"} | fields
    await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)


async def put_topic(client: BrokerClient, perm: int, queues: int) -> None:
    fields = {
        "topic": "t", "defaultTopic": "TBW102", "readQueueNums": str(queues), "perm": str(perm),
        "writeQueueNums": str(queues), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false",
    }  # fmt: skip
    await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)


async def subscribe(
    client: BrokerClient, expression: str, *, version: int = 5, kind: str = "TAG"
) -> None:
    tags = [expression] if kind == "TAG" else []
    subscription = {
        "topic": "t", "subString": expression, "subVersion": version, "tagsSet": tags,
        "codeSet": [CODES[tag] for tag in tags], "expressionType": kind, "classFilterMode": False,
    }  # fmt: skip
    consumer = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [subscription],
    }  # fmt: skip
    beat = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}
    await ask(client, RequestCode.HEART_BEAT, beat)


async def change(client: BrokerClient, line: bytes) -> None:
    await ask(client, RequestCode.UPDATE_BROKER_CONFIG, line)


async def test_settings_of_the_broker(tmp_path: Path, made: Made) -> None:
    async with planned(tmp_path, made) as (_, client):
        await change(client, b"brokerPermission=2\n")
        assert (await client.pull())[0].code == 16
        await change(client, b"brokerPermission=6\n")
        assert (await client.pull())[0].code == 0
        sql: dict[str, Any] = {"expressionType": "SQL92", "subscription": "TAGS = 'red'"}
        for _ in range(2):
            _, records = await client.pull(**sql)
            assert [record.body for record in records] == [b"0"]
        await change(client, b"enablePropertyFilter=false\n")
        assert (await client.pull(**sql))[0].code == 1
        assert (await client.pull())[0].code == 0


async def test_its_group(tmp_path: Path, made: Made) -> None:
    async with planned(tmp_path, made) as (running, client):
        stats = running.broker.stats
        await put_group(client, consumeEnable=False)
        assert (await client.pull())[0].code == 16
        await put_group(client)
        assert (await client.pull())[0].code == 0
        assert stats.pulls["g", "t"].count == 8
        await ask(client, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g")
        assert (await client.pull())[0].code == 26
        await put_group(client)
        assert (await client.pull())[0].code == 0
        assert stats.pulls["g", "t"].count == 2, "what was counted went with the group"


async def test_its_topic(tmp_path: Path, made: Made) -> None:
    async with planned(tmp_path, made) as (running, client):
        await put_topic(client, 2, 4)
        assert (await client.pull())[0].code == 16
        await put_topic(client, 6, 1)
        assert (await client.pull())[0].code == 1
        await put_topic(client, 6, 4)
        assert (await client.pull())[0].code == 0
        await ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        assert (await client.pull())[0].code == 17
        await put_topic(client, 6, 4)
        await fill(client, 1)
        head, records = await client.pull()
        assert (head.code, len(records)) == (0, 1), "of the new topic"
        assert running.broker.stats.pulls["g", "t"].count == 1


async def test_what_its_group_subscribes_to(tmp_path: Path, made: Made) -> None:
    async with planned(tmp_path, made, **TAGGED) as (_, client):
        _, records = await client.pull(**TAGGED)
        assert [record.body for record in records] == [b"0"]
        await subscribe(client, "blue", version=6)
        _, records = await client.pull(**TAGGED)
        assert [record.body for record in records] == [b"1"]
        await subscribe(client, "TAGS = 'red'", version=7, kind="SQL92")
        for _ in range(2):
            _, records = await client.pull(**TAGGED)
            assert [record.body for record in records] == [b"0"]
        await subscribe(client, "TAGS = 'blue'", version=8, kind="SQL92")
        _, records = await client.pull(**TAGGED)
        assert [record.body for record in records] == [b"1"]
        await ask(
            client, RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="",
            consumerGroup="g",
        )  # fmt: skip
        assert (await client.pull(**TAGGED))[0].code == 24


async def test_the_end_of_its_last_connection(tmp_path: Path, made: Made) -> None:
    async with planned(tmp_path, made) as (running, client):
        other = await running.connect()
        await subscribe(other, "red")
        assert (await client.pull(**TAGGED))[0].code == 0
        other.writer.close()
        async with asyncio.timeout(60):
            while (head := (await client.pull(**TAGGED))[0]).code == 0:
                await asyncio.sleep(0.001)
        assert head.code == 24


async def test_hooks(tmp_path: Path, made: Made) -> None:
    class Refuses:
        def before(self, peer: Peer, request: Request[Any]) -> None:
            raise BadRequest(16, "no")

        def after(self, peer: Peer, request: Request[Any], code: int) -> None:
            pass

    async with planned(tmp_path, made) as (running, client):
        running.broker.router.hooks.append(Refuses())
        assert (await client.pull())[0].code == 16


async def test_filters_that_plans_keep_are_bounded(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "MAX_PLANNED_BYTES", 20_000)
    async with planned(tmp_path, made) as (_, client):
        sql: dict[str, Any] = {"expressionType": "SQL92"}
        for number in range(40):
            for _ in range(2):  # the first is parsed, the second gets a plan
                head, _ = await client.pull(subscription=f"TAGS = 'red' OR n = {number}", **sql)
                assert head.code == 0
        before = made.plans
        await client.pull()
        assert made.plans == before + 1, "the first plan went with those of filters"
