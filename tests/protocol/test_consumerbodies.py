"""Bodies about running consumers, as the clients of each language write and read them."""

from __future__ import annotations

import pytest

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    DirectResult,
    ProcessQueueInfo,
    QueueKey,
    RunningInfo,
    RunningInfoRead,
    TopicRates,
    offset_body,
    queue_table,
    read_offsets,
    reset_to,
)
from cometmq.protocol.fastjson import encode_json, object_map, parse_json

A, B = QueueKey("t", "broker-a", 0), QueueKey("t", "broker-a", 1)


@pytest.mark.parametrize("language", ["JAVA", "CPP", "GO", "PYTHON"])
def test_offsets_for_every_language_are_read_again(language: str) -> None:
    assert read_offsets(offset_body({A: 3, B: 0}, language)) == {A: 3, B: 0}
    assert read_offsets(offset_body({}, language)) == {}


def test_java_gets_objects_as_keys_and_cpp_a_list() -> None:
    assert offset_body({A: 3}) == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:3}}'
    )
    assert offset_body({A: 3}, "CPP") == (
        b'{"offsetTable":[{"brokerName":"broker-a","offset":3,"queueId":0,"topic":"t"}]}'
    )


def test_pairs_as_go_writes_them_are_read() -> None:
    pair = b'[{"topic":"t","brokerName":"broker-a","queueId":0},7]'
    assert read_offsets(b'{"offsetTable":[' + pair + b"]}") == {A: 7}
    assert read_offsets(b'{"offsetTable":null}') == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"offsetTable":1}',
        b'{"offsetTable":[1]}',
        b'{"offsetTable":{"x":1}}',
        b'{"offsetTable":[{"topic":"t"}]}',
        b'{"offsetTable":{"{}":1}}',
    ],
)
def test_other_offsets_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_offsets(body)


def test_only_force_skips_messages() -> None:
    assert reset_to(5, 3, force=True) == 5
    assert reset_to(5, 3, force=False) == 3
    assert reset_to(2, 3, force=False) == 2
    assert reset_to(5, -1, force=False) == 5


def test_running_info_has_the_names_that_java_reads() -> None:
    queue = ProcessQueueInfo(commit_offset=3, cached_msg_size_in_mi_b=1, dropped=True)
    rates = {"t": TopicRates(pull_rt=1.5, consume_ok_tps=2)}
    body = encode_json(RunningInfo({"p": "v"}, (), object_map([(A, queue)]), rates, "stacks"))
    for name in (b'"cachedMsgSizeInMiB":1', b'"droped":true', b'"pullRT":1.5'):
        assert name in body
    assert b'"mqTable":{{"brokerName":' in body
    read = parse_json(body, RunningInfoRead)
    assert queue_table(read.mq_table) == {A: queue}
    assert (read.status_table, read.properties, read.jstack) == (rates, {"p": "v"}, "stacks")


def test_the_result_of_consuming_has_the_names_that_java_reads() -> None:
    assert encode_json(DirectResult(True, True, "CR_LATER", None, 7)) == (
        b'{"autoCommit":true,"consumeResult":"CR_LATER","order":true,"spentTimeMills":7}'
    )
