"""Tables and settings of a real Java 4.9.7 broker, as it left them."""

from pathlib import Path

import pytest

from cometmq.broker.config import load
from cometmq.core.errors import SettingsError
from cometmq.core.settings import parse_properties
from cometmq.message.record import iter_decode
from cometmq.protocol.codes import RequestCode
from cometmq.store.config import StoreConfig
from cometmq.store.read.reader import ReadStatus
from tests.broker.world import open_parts, open_tables
from tests.golden import library


@pytest.mark.parametrize("name", ["clean", "killed"])
async def test_java_s_tables_are_written_back_byte_for_byte(tmp_path: Path, name: str) -> None:
    config = library.unpack_store(name, tmp_path) / "config"
    before = {path.name: path.read_bytes() for path in config.glob("*.json")}
    async with open_tables(config) as tables:
        for file in (tables.topics._table.file, tables.groups._table.file, tables.offsets._file):
            await file.write()
    for file_name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        if file_name in before:
            assert (config / file_name).read_bytes() == before[file_name]


async def test_delayed_messages_of_a_java_broker_are_delivered(tmp_path: Path) -> None:
    store_directory = library.unpack_store("clean", tmp_path)
    golden = library.stores()["clean"]
    positions = (store_directory / "config" / "delayOffset.json").read_bytes()
    sizes = StoreConfig(
        mapped_file_size_commit_log=golden["settings"]["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=golden["settings"]["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=golden["settings"]["maxHashSlotNum"],
        max_index_num=golden["settings"]["maxIndexNum"],
    )
    async with open_parts(store_directory, store_config=sizes) as parts:
        reply = await parts.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert reply.body == b"".join(positions.split())
        parked = golden["parked_delay_level_18"]
        _, end = parts.delivery.progress()[18]
        assert end == parked
        result = parts.store.read("SCHEDULE_TOPIC_XXXX", 17, 0, 32)
        assert result.status is ReadStatus.FOUND
        found = [record for chunk in result.chunks for record in iter_decode(chunk)]
        assert len(found) == parked


def java_settings() -> dict[str, str]:
    for frame in library.frames():
        if frame["file"].endswith("get-broker-config-response.bin"):
            raw = library.frame_bytes(frame["file"])
            header_bytes = int.from_bytes(raw[5:8], "big")
            return parse_properties(raw[8 + header_bytes :].decode())
    raise AssertionError("no captured settings")


def test_every_setting_of_a_java_broker_is_known() -> None:
    values = java_settings()
    assert len(values) > 150
    refused: list[str] = []
    for key, value in values.items():
        try:
            load({key: value})
        except SettingsError as error:
            refused.append(str(error))
    assert refused == []


def test_our_defaults_are_those_of_java() -> None:
    values = java_settings()
    broker, _, _ = load({})
    same = {
        "brokerPermission": broker.broker_permission,
        "defaultTopicQueueNums": broker.default_topic_queue_nums,
        "maxMessageSize": broker.max_message_size,
        "messageDelayLevel": broker.message_delay_level,
        "shortPollingTimeMills": broker.short_polling_time_mills,
        "regionId": broker.region_id,
        "flushConsumerOffsetInterval": broker.flush_consumer_offset_interval,
        "flushDelayOffsetInterval": broker.flush_delay_offset_interval,
        "defaultQueryMaxNum": broker.default_query_max_num,
        "brokerClusterName": broker.broker_cluster_name,
        "msgTraceTopicName": broker.msg_trace_topic_name,
    }
    assert {key: str(value) for key, value in same.items()} == {key: values[key] for key in same}
