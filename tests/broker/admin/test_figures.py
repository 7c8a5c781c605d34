"""Statistics of topics, groups and the broker, as tools ask for them; slow puts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.message.batch import pack
from cometmq.protocol.codes import RequestCode
from tests.broker.serving import BATCH, BrokerClient, running_broker, send_fields
from tests.broker.test_acknowledgement import SlowFiles
from tests.net.serving import until

WINDOWS = ("statsMinute", "statsHour", "statsDay")


async def ask(client: BrokerClient, name: str, key: str) -> tuple[int, Any]:
    head, body = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    return head.code, json.loads(body) if body else head.remark


async def sums(client: BrokerClient, name: str, key: str) -> list[int]:
    code, found = await ask(client, name, key)
    assert code == 0, found
    assert list(found) == sorted(WINDOWS)
    return [found[window]["sum"] for window in WINDOWS]


async def runtime_info(client: BrokerClient) -> dict[str, str]:
    _, body = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table: dict[str, str] = json.loads(body)["table"]
    return table


async def test_sends_and_pulls_have_figures(tmp_path: Path) -> None:
    async with running_broker(tmp_path, brokerClusterName="stars") as running:
        client, stats = await running.connect(), running.broker.stats
        for _ in range(5):  # the first is served alone, later ones together
            assert (await client.send(b"x" * 100)).code == 0
        batch = pack((0, b"y" * 10, b"UNIQ_KEY\x01B%d" % number) for number in range(7))
        assert (await client.send(batch, code=BATCH, m="true", i="")).code == 0
        assert (await client.send(batch, code=BATCH, m="true", i="")).code == 0
        code, found = await ask(client, "TOPIC_PUT_NUMS", "t")
        empty = {"avgpt": 0.0, "sum": 0, "tps": 0.0}
        assert (code, found) == (0, dict.fromkeys(WINDOWS, empty)), "known before the sample"
        _, records = await client.pull(0)
        assert len(records) == 19
        await client.pull(14)
        stored = sum(record.size_bytes for record in records)
        read_again = sum(record.size_bytes for record in records[14:])
        before = stats.pulled.step
        await stats.sample_step()
        assert stats.pulled.step == before + 1
        assert (await sums(client, "TOPIC_PUT_NUMS", "t"))[0] == 19
        assert (await sums(client, "TOPIC_PUT_SIZE", "t"))[0] == stored
        assert (await sums(client, "GROUP_GET_NUMS", "t@g"))[0] == 24
        assert (await sums(client, "GROUP_GET_SIZE", "t@g"))[0] == stored + read_again
        assert (await sums(client, "BROKER_PUT_NUMS", "stars"))[0] == 19
        assert (await sums(client, "BROKER_GET_NUMS", "stars"))[0] == 24
        _, found = await ask(client, "TOPIC_PUT_NUMS", "t")
        assert found["statsMinute"]["avgpt"] == 19 / 7
        _, found = await ask(client, "GROUP_GET_NUMS", "t@g")
        assert found["statsMinute"]["avgpt"] == 12.0
        _, found = await ask(client, "BROKER_PUT_NUMS", "stars")
        assert found["statsMinute"]["avgpt"] == 0.0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "nothing"), ("GROUP_GET_NUMS", "t@nobody"), ("GROUP_GET_NUMS", "t"),
        ("BROKER_PUT_NUMS", "elsewhere"), ("SNDBCK_PUT_NUMS", "t@g"), ("NO_SUCH_NAME", "t"),
        ("COMMERCIAL_SEND_TIMES", "o@t@g@SEND_SUCCESS"), ("GROUP_GET_FALL_TIME", "0@t@g"),
    ],
)  # fmt: skip
async def test_an_unknown_figure_is_an_error(tmp_path: Path, name: str, key: str) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
        code, remark = await ask(client, name, key)
        assert (code, remark) == (1, f"The stats <{name}> <{key}> not exist")


async def test_figures_of_a_deleted_topic_are_gone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client, stats = await running.connect(), running.broker.stats
        await client.send()
        await stats.sample_step()
        assert (await sums(client, "TOPIC_PUT_NUMS", "t"))[0] == 1
        await client.send()
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")
        assert (await ask(client, "TOPIC_PUT_NUMS", "t"))[0] == 1
        await stats.sample_step()
        assert (await ask(client, "TOPIC_PUT_NUMS", "t"))[0] == 1
        await client.send()
        await stats.sample_step()
        assert (await sums(client, "TOPIC_PUT_NUMS", "t"))[0] == 1


async def test_a_start_counts_from_zero(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        client = await running.connect()
        await client.send()
    async with running_broker(tmp_path) as running:
        client, stats = await running.connect(), running.broker.stats
        await stats.sample_step()
        assert (await ask(client, "TOPIC_PUT_NUMS", "t"))[0] == 1
        await client.send()
        await stats.sample_step()
        assert (await sums(client, "TOPIC_PUT_NUMS", "t"))[0] == 1


async def test_a_send_back_and_its_delivery_have_figures(tmp_path: Path) -> None:
    levels: dict[str, Any] = {"messageDelayLevel": "1s 1s 1s"}
    async with running_broker(tmp_path, **levels) as running:
        client, stats = await running.connect(), running.broker.stats
        stored = await client.send()
        place = str(int(stored.ext["msgId"][16:], 16))
        back: dict[str, Any] = {"offset": place, "group": "g", "delayLevel": "1"}
        head, _ = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back)
        assert head.code == 0
        await until(lambda: running.broker.store.queues.get(("%RETRY%g", 0)))
        await stats.sample_step()
        cluster = running.broker.config.broker_cluster_name
        assert (await sums(client, "SNDBCK_PUT_NUMS", "t@g"))[0] == 1
        assert (await sums(client, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"))[0] == 1
        assert (await sums(client, "QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0"))[0] == 1
        await until(lambda: stats.pulls.get(("SCHEDULE_CONSUMER", "SCHEDULE_TOPIC_XXXX")))
        await stats.sample_step()
        delivered = "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER"
        assert (await sums(client, "GROUP_GET_NUMS", delivered))[0] == 1
        assert (await sums(client, "TOPIC_PUT_NUMS", "%RETRY%g"))[0] == 1
        assert (await sums(client, "BROKER_PUT_NUMS", cluster))[0] == 2


async def test_slow_puts_are_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = SlowFiles()
    async with running_broker(tmp_path, files, flushDiskType="SYNC_FLUSH") as running:
        client, broker = await running.connect(), running.broker
        assert (await client.send()).code == 0
        assert (await runtime_info(client))["putMessageSlowTimes"] == "0"
        files.blocked = True
        clients = [await running.connect() for _ in range(3)]
        for each in clients:
            each.post(RequestCode.SEND_MESSAGE_V2, b"slow", **send_fields())
        await until(lambda: broker.appender.waiting_sends == 3)
        began = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > began + 0.6)
        files.blocked = False
        for each in clients:
            assert (await each.frame())[0].code == 0
        info = await runtime_info(client)
        assert info["putMessageSlowTimes"] == "3"
        assert int(info["putMessageEntireTimeMax"]) >= 600
        logged = [record for record in caplog.records if record.message.startswith("slow puts")]
        assert sum(record.args[0] for record in logged) == 3  # type: ignore[index,misc]
        broker.stats.put_times.end_minute()
        info = await runtime_info(client)
        shown = dict(pair.rsplit(":", 1) for pair in info["putMessageDistributeTime"].split())
        assert list(shown)[:3] == ["[<=0ms]", "[0~10ms]", "[10~50ms]"]
        assert sum(map(int, shown.values())) == 4
        assert sum(int(shown[name]) for name in list(shown)[6:]) == 3
        assert float(info["putLatency99"]) > 100
