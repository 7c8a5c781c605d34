"""Settings and state of a broker."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.admin.broker import format_duration, format_size
from cometmq.broker.config import BrokerConfig
from cometmq.core.errors import BadRequest, StoreCorrupt
from cometmq.core.settings import parse_properties
from cometmq.protocol.bodies import DataVersion, KvTable
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.headers import GetBrokerConfigResponse
from cometmq.store.files import DiskSpace, PosixFiles
from tests.broker.world import SMALL_STORE, Parts, open_parts

#: What a Java 4.9.7 broker answers and its tools read.
KEYS = """
brokerVersionDesc brokerVersion bootTimestamp runtime putTps getTransferedTps getTotalTps
getFoundTps getMissTps msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow putMessageEntireTimeMax
putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal putMessageAverageSize
putMessageDistributeTime putLatency99 putLatency999 getMessageEntireTimeMax dispatchMaxBuffer
dispatchBehindBytes pageCacheLockTimeMills sendThreadPoolQueueSize sendThreadPoolQueueCapacity
sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize pullThreadPoolQueueCapacity
pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize queryThreadPoolQueueCapacity
queryThreadPoolQueueHeadWaitTimeMills EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity
commitLogMinOffset commitLogMaxOffset commitLogDiskRatio consumeQueueDiskRatio
earliestMessageTimeStamp startAcceptSendRequestTimeStamp remainTransientStoreBufferNumbs
remainHowManyDataToCommit remainHowManyDataToFlush commitLogDirCapacity
"""


async def state(parts: Parts) -> dict[str, str]:
    return parse_json((await parts.ask(Code.GET_BROKER_RUNTIME_INFO)).body, KvTable).table


async def settings(parts: Parts) -> tuple[dict[str, str], DataVersion]:
    reply = await parts.ask(Code.GET_BROKER_CONFIG)
    assert isinstance(reply.header, GetBrokerConfigResponse)
    version = parse_json(reply.header.version.encode(), DataVersion)
    return parse_properties(reply.body.decode()), version


async def test_every_key_that_tools_read_is_there(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        found = await state(parts)
        assert set(KEYS.split()) <= set(found)
        for key in ("putTps", "getTransferedTps", "getTotalTps", "getFoundTps", "getMissTps"):
            assert [float(text) for text in found[key].split(" ")] == [0, 0, 0]
        assert found["brokerVersionDesc"] == "V4_9_7"
        assert found["earliestMessageTimeStamp"] == "-1"
        assert 0 <= float(found["commitLogDiskRatio"]) <= 1


class Used(PosixFiles):
    """A log on two devices; one of them is nearly full."""

    def disk_space(self, path: str) -> DiskSpace:
        used = 95 if path.endswith("/a") else 30
        return DiskSpace(100, used, 100 - used)


async def test_a_device_of_the_log_that_is_gone(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    config = replace(SMALL_STORE, store_path_commit_log=f"{first},{second}")
    async with open_parts(tmp_path / "s", store_config=config) as parts:
        for path in (second, first):
            path.rename(tmp_path / "away")
            found = await state(parts)
            assert found[f"commitLogDiskRatio_{path}"] == "1.0"
            assert 0 < float(found["commitLogDiskRatio"]) < 1
            # Retention looks after the other one.
            await parts.store.maintenance.expiry.check()
            (tmp_path / "away").rename(path)
        for path in (first, second):
            path.rename(tmp_path / f"away-{path.name}")
        with pytest.raises(FileNotFoundError):
            await parts.store.maintenance.expiry.check()
        for path in (first, second):
            (tmp_path / f"away-{path.name}").rename(path)


async def test_the_least_used_of_several_devices_counts(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    config = replace(SMALL_STORE, store_path_commit_log=f"{second},{first}")
    async with open_parts(tmp_path / "s", store_config=config, files=Used()) as parts:
        found = await state(parts)
        assert found["commitLogDiskRatio"] == "0.3"
        assert found[f"commitLogDiskRatio_{first}"] == "0.95"
        assert found[f"commitLogDiskRatio_{second}"] == "0.3"
        assert found["commitLogDirCapacity"] == "Total : 100 B, Free : 70 B."
        await parts.store.maintenance.expiry.check()
        assert parts.store.state.disk_problem == ""
        assert parts.store.runtime()["disk_used_ratio"] == 0.3


async def test_settings_that_export_needs_are_there(tmp_path: Path) -> None:
    """`mqadmin exportConfigs` ends in a NullPointerException where one of them is missing."""
    async with open_parts(tmp_path) as parts:
        found, _ = await settings(parts)
        assert (found["filterServerNums"], found["useTLS"]) == ("0", "false")
        wanted = {"messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn"}
        assert wanted <= set(found)


async def test_a_damaged_first_record_hides_no_other_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(_offset: int) -> None:
        raise StoreCorrupt("file", 0, "flipped")

    async with open_parts(tmp_path) as parts:
        monkeypatch.setattr(parts.store, "fetch_at", damaged)
        assert (await state(parts))["earliestMessageTimeStamp"] == "-1"


async def test_the_state_follows_the_traffic(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        put = await parts.put("t", b"12345")
        record = parts.read("t")[0]
        parts.stats.on_pull("g", "t", 1, record.size_bytes)
        found = await state(parts)
        assert found["putMessageTimesTotal"] == found["msgPutTotalTodayNow"] == "1"
        assert found["msgGetTotalTodayNow"] == "1"
        assert found["putMessageSizeTotal"] == str(record.size_bytes)
        assert found["commitLogMaxOffset"] == str(put.physical_offset + record.size_bytes)
        assert found["dispatchBehindBytes"] == "0"
        assert found["earliestMessageTimeStamp"] == str(record.store_ms)
        assert "scheduleMessageOffset_1" not in found
        await parts.put("SCHEDULE_TOPIC_XXXX", b"x", 0, DELAY="1")
        assert (await state(parts))["scheduleMessageOffset_1"] == "0,1"
        assert re.fullmatch(r"\d+ B", found["remainHowManyDataToFlush"])


async def test_settings_are_shown_and_changed(tmp_path: Path) -> None:
    config = BrokerConfig()
    async with open_parts(tmp_path, config) as parts:
        shown, version = await settings(parts)
        assert shown["brokerIP1"] == "127.0.0.1"
        assert shown["mappedFileSizeCommitLog"] == str(1 << 20)
        topics_version = parts.topics.data_version
        body = b"brokerPermission=4\nlongPollingEnable=false\nbrokerName=broker-a\n"
        assert (await parts.ask(Code.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert (config.broker_permission, config.long_polling_enable) == (4, False)
        shown, newer = await settings(parts)
        assert shown["brokerPermission"] == "4"
        assert newer.counter == version.counter + 1
        assert parts.topics.data_version != topics_version  # name servers hear of it
        await parts.ask(Code.UPDATE_BROKER_CONFIG, body=body)
        assert (await settings(parts))[1] == newer


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"nonsense=1", ResponseCode.SYSTEM_ERROR, "no such setting"),
        (b"nonsense", ResponseCode.SYSTEM_ERROR, "not of the form"),
        (b"maxMessageSize=" + b"9" * 60_000, ResponseCode.SYSTEM_ERROR, "too long for a number"),
        (b"maxMessageSize=" + b"9" * 30, ResponseCode.SYSTEM_ERROR, "does not fit 64 bits"),
        (b"listenPort=1", ResponseCode.SYSTEM_ERROR, "while the broker runs"),
        (b"flushDiskType=SYNC_FLUSH", ResponseCode.SYSTEM_ERROR, "while the broker runs"),
        (b"brokerConfigPath=/etc", ResponseCode.NO_PERMISSION, "black list"),
        (b"\xff=1", ResponseCode.SYSTEM_ERROR, "no such setting"),
    ],
)
async def test_settings_that_cannot_change_are_refused(
    tmp_path: Path, body: bytes, code: int, remark: str
) -> None:
    async with open_parts(tmp_path) as parts:
        with pytest.raises(BadRequest, match=remark) as error:
            await parts.ask(Code.UPDATE_BROKER_CONFIG, body=body)
        assert error.value.code == code
        assert len(error.value.remark) < 300


def test_durations_and_sizes_read_as_in_java() -> None:
    assert format_duration(0) == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
    assert format_duration(93_784_999) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    sizes = [0, 1023, 1024, 1536, 1048575, 1048576, 10**9, 2**60]
    assert [format_size(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1024.0 KiB",
        "1.0 MiB",
        "953.7 MiB",
        "1.0 EiB",
    ]
