"""SQL92 subscriptions at a whole broker, over a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.protocol.codes import RequestCode
from tests.broker.serving import PULL, BrokerClient, pull_fields, running_broker

SQL: dict[str, Any] = {"expressionType": "SQL92"}


async def fill(client: BrokerClient, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        text = f"UNIQ_KEY\x01U{number}\x02number\x01{number}"
        assert (await client.send(str(number).encode(), i=text)).code == 0


def bodies(records: list[Any]) -> list[int]:
    return [int(record.body) for record in records]


async def test_what_matches_is_gathered_over_many_entries(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 200)
        head, records = await client.pull(
            subscription="number BETWEEN 40 AND 45 OR number >= 198", maxMsgNums="32", **SQL
        )
        assert (head.code, head.ext["nextBeginOffset"]) == (0, "200")
        assert bodies(records) == [40, 41, 42, 43, 44, 45, 198, 199]
        head, records = await client.pull(subscription="number >= 40", maxMsgNums="5", **SQL)
        assert bodies(records) == [40, 41, 42, 43, 44]
        head, records = await client.pull(
            int(head.ext["nextBeginOffset"]), subscription="number >= 40", maxMsgNums="2", **SQL
        )
        assert bodies(records) == [45, 46]


async def test_an_answer_stays_below_its_size(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        for number in range(12):
            await client.send(bytes(60_000), i=f"number\x01{number % 3}")
        offset, seen = 0, 0
        while offset < 12:
            head, records = await client.pull(offset, subscription="number < 2", **SQL)
            assert head.code == 0
            assert 0 < sum(len(record.body) for record in records) <= 262_144
            offset, seen = int(head.ext["nextBeginOffset"]), seen + len(records)
        assert seen == 8


async def test_no_match_moves_on_and_a_held_pull_waits_for_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client, puller = await running.connect(), await running.connect()
        await fill(client, 50)
        head, _ = await client.pull(subscription="number > 1000", **SQL)
        assert (head.code, head.ext["nextBeginOffset"]) == (20, "50")
        wanted = dict(subscription="number > 51", sysFlag="6", suspendTimeoutMillis="10000", **SQL)
        puller.post(PULL, **pull_fields(50, **wanted))
        async with asyncio.timeout(60):
            while running.broker.pull.handler.longpoll.count != 1:
                await asyncio.sleep(0.001)
        await fill(client, 3, first=50)
        answer, _ = await puller.frame()
        assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "53")


async def test_cold_messages_are_filtered_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path, accessMessageInMemoryMaxRatio="0") as running:
        client = await running.connect()
        await fill(client, 20)
        seen: list[int] = []
        offset = 0
        while offset < 20:
            head, records = await client.pull(offset, subscription="number > 17", **SQL)
            assert head.code in (0, 20)
            seen += bodies(records)
            offset = int(head.ext["nextBeginOffset"])
        assert seen == [18, 19]


@pytest.mark.parametrize("expression", ["number >= 0", "number < 0"])
async def test_looking_far_behind_the_end_takes_of_its_share(
    tmp_path: Path, expression: str
) -> None:
    async with running_broker(tmp_path, accessMessageInMemoryMaxRatio="0") as running:
        client = await running.connect()
        await fill(client, 20)
        share = running.broker.pull.handler._far._share
        for _ in range(2):  # from the device, and again from what was read of it
            spent = share.free_ns
            await client.pull(subscription=expression, **SQL)
            assert share.free_ns > spent
    async with running_broker(tmp_path / "near") as running:
        client = await running.connect()
        await fill(client, 20)
        await client.pull(subscription=expression, **SQL)
        assert running.broker.pull.handler._far._share.free_ns == 0


async def subscribe(
    client: BrokerClient, *wanted: tuple[str, int], kind: str = "SQL92", group: str = "g"
) -> None:
    """A heartbeat of a group that wants ``t``, ``t1``... by expressions of some versions."""
    subscriptions = [
        {
            "topic": f"t{at or ''}", "subString": text, "subVersion": version, "tagsSet": [],
            "codeSet": [], "expressionType": kind, "classFilterMode": False,
        }
        for at, (text, version) in enumerate(wanted)
    ]  # fmt: skip
    beat = {
        "clientID": "c1", "producerDataSet": [],
        "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "unitMode": False,
            "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }],
    }  # fmt: skip
    answer, _ = await client.ask(RequestCode.HEART_BEAT, msgspec.json.encode(beat))
    while answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        answer, _ = await client.frame()
    assert answer.code == 0


async def test_a_subscription_from_the_heartbeat(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 5)
        await subscribe(client, ("number = 3", 5))
        _, records = await client.pull(sysFlag="0", subVersion="5")
        assert bodies(records) == [3]
        head, _ = await client.pull(sysFlag="0", subVersion="6")
        assert head.code == 25


async def test_what_is_stored_of_a_group_outlives_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        await subscribe(await running.connect(), ("number = 3", 5))
    async with running_broker(tmp_path) as running:
        data = running.broker.pull.stored_filters.get("t", "g")
        assert data is not None
        assert (data.expression, data.client_version, data.dead) == ("number = 3", 5, True)


async def test_a_pull_needs_a_stored_filter_as_new_as_itself(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await fill(client, 5)
        # Of one version the first expression counts, of an unreadable one there is none.
        await subscribe(client, ("number = 3", 5))
        await subscribe(client, ("number = 4", 5))
        _, records = await client.pull(sysFlag="0", subVersion="5")
        assert bodies(records) == [3]
        await subscribe(client, ("number >", 6))
        head, _ = await client.pull(sysFlag="0", subVersion="6")
        assert (head.code, "not exist" in (head.remark or "")) == (27, True)
        await subscribe(client, ("number = 3", 7))
        subscriptions = running.broker.consumers.members.table.consumers["g"].subscriptions
        subscriptions["t"] = msgspec.structs.replace(subscriptions["t"], sub_version=8)
        head, _ = await client.pull(sysFlag="0", subVersion="8")
        assert (head.code, "not latest" in (head.remark or "")) == (28, True)


@pytest.mark.parametrize(
    ("kind", "text", "enabled", "code", "words"),
    [
        ("SQL92", "number >", True, 23, "at character 8"),
        ("SQL92", "number > 1", False, 1, "enablePropertyFilter"),
        ("LUA", "number > 1", True, 1, "not supported"),
        ("TAG", "||", True, 23, "names no tag"),
        ("SQL92", "number > 1", True, 0, ""),
        ("TAG", "a || b", True, 0, ""),
    ],
)
async def test_a_client_s_check(
    tmp_path: Path, kind: str, text: str, enabled: bool, code: int, words: str
) -> None:
    body = {
        "clientId": "c", "group": "g", "namespace": None,
        "subscriptionData": {"topic": "t", "subString": text, "expressionType": kind},
    }  # fmt: skip
    async with running_broker(tmp_path, enablePropertyFilter=str(enabled).lower()) as running:
        client = await running.connect()
        head, _ = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, msgspec.json.encode(body))
        assert head.code == code
        assert words in (head.remark or "")
        if code in (1, 23):
            await fill(client, 1)
            pulled, _ = await client.pull(subscription=text, expressionType=kind)
            assert pulled.code == code
