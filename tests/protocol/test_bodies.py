"""Bodies under their upstream names, as the clients of each language write and read them.

A Java 4.9.7 broker was asked what each heartbeat means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cometmq.core.errors import BadRequest
from cometmq.protocol import bodies as b
from cometmq.protocol.bodies import (
    ENUMERATIONS,
    NO_VERSION,
    BrokerData,
    ConsumerData,
    DirectResult,
    Heartbeat,
    ProcessQueueInfo,
    ProducerData,
    QueueData,
    QueueKey,
    QueueLockRequest,
    RunningInfo,
    RunningInfoRead,
    SubscriptionData,
    TopicRates,
    TopicRoute,
    offset_body,
    parse_client_body,
    queue_table,
    read_offsets,
    readable,
    reset_to,
    writable,
)
from cometmq.protocol.fastjson import encode_json, object_map, parse_json

TOPIC = b.TopicConfig("t", 4, 8, 6)
SUBSCRIPTION = b.SubscriptionData("t", "a || b", 5, ("a", "b"), (97, 98))
PRODUCER = b.ProducerInfo("c", "h:1", "JAVA", 407, 1)
RATES = b.TopicRates(1.0, 2.0, 3.0, 4.0, 5.0, 6)

EXAMPLES: list[b.Body] = [
    b.QueueKey("t", "broker-a", 3),
    b.DataVersion(1, 2),
    b.DataVersion(1, 2, 3),
    TOPIC,
    b.TopicConfigTable(b.DataVersion(1, 2), {"t": TOPIC}),
    b.TopicList(["t"], "127.0.0.1:1"),
    b.ClusterBroker("a", {"0": "h:1"}, "c"),
    b.ClusterInfo({"a": b.ClusterBroker("a", {"0": "h:1"}, "c")}, {"c": ["a"]}),
    b.KvTable({"k": "v"}),
    b.SubscriptionGroupConfig("g"),
    b.SubscriptionGroupTable(b.DataVersion(), {"g": b.SubscriptionGroupConfig("g")}),
    SUBSCRIPTION,
    b.ConsumerData("g", subscription_data_set=(SUBSCRIPTION,)),
    b.ProducerData("p"),
    b.ClientConfigCheck(b.SubscriptionData("t"), "c", "g"),
    b.Heartbeat("c", (b.ProducerData("p"),), (b.ConsumerData("g"),)),
    b.AccountEntry("key", "secret", "*", True, "PUB", "SUB", ["t=PUB"], ["g=SUB"]),
    b.AclConfig(["10.0.0.1"], [b.AccountEntry("key", "secret")]),
    b.ConsumerIds(["c"]),
    b.QueueEntry(1, 2, -3),
    b.QueueEntries(9, 0, [b.QueueEntry(1, 2, 3)], b.SubscriptionData("t"), "null"),
    b.QueueLockRequest("g", "c", [b.QueueKey("t", "a", 0)]),
    b.QueueLockResponse([b.QueueKey("t", "a", 0)]),
    b.ClientConnection("c", "h:1", "JAVA", 407),
    b.ConsumerConnections([], {"t": SUBSCRIPTION}, "p", "m", "w"),
    b.GroupList(["g"]),
    b.Promote("SYNC_MASTER", force=True),
    b.Finding("ok", "text"),
    b.Promotion(True, "a", [b.Finding("warning", "text")]),
    b.TakeAddress("127.0.0.1:10911", check=True),
    b.AddressState("in_use", "somebody listens there"),
    b.TopicOffset(0, 1, 2),
    b.ConsumeOffset(3, 2, 1),
    b.TopicStatsRead({"{}": b.TopicOffset(0, 1, 2)}),
    b.ConsumeStatsRead({"{}": b.ConsumeOffset(3, 2, 1)}, 0.5),
    b.BrokerConsumeStats("h:1", [], 5),
    b.BrokerConsumeStatsRead([{"g": [b.ConsumeStatsRead({}, 0.5)]}], 5),
    b.BrokerStatsItem(1.5, 3, 0.25),
    b.BrokerStatsData(*(b.BrokerStatsItem(1.5, 3, 0.25) for _ in "dhm")),
    b.ClientStatusRead({"{}": 1}),
    b.QueueTimeSpan(b.QueueKey("t", "a", 0), 1, 2, 3, 4),
    b.ConsumeTimeSpans([b.QueueTimeSpan(b.QueueKey("t", "a", 0), 1, 2, 3, 4)]),
    b.ConsumerStatusRead({"c": {"{}": 1}}),
    b.CorrectionOffsets({0: 1}),
    b.DirectResult(False, True, "CR_SUCCESS", None, 1),
    b.ProcessQueueInfo(7),
    PRODUCER,
    b.ProducerConnections([b.ClientConnection("c", "h:1", "JAVA", 407)]),
    b.ProducerTable({"g": [PRODUCER]}),
    b.QueueOffset("t", "a", 0, 5),
    b.QueueOffsets((b.QueueOffset("t", "a", 0, 5),)),
    RATES,
    b.RunningInfoRead({"k": "v"}, (SUBSCRIPTION,), {"{}": b.ProcessQueueInfo(7)}, {"t": RATES}),
]


@pytest.mark.parametrize("body", EXAMPLES, ids=lambda body: type(body).__name__)
def test_a_body_survives_its_json(body: b.Body) -> None:
    assert parse_json(encode_json(body), type(body)) == body


def test_every_body_has_an_example() -> None:
    declared = {
        cls
        for name, cls in vars(b).items()
        if isinstance(cls, type) and issubclass(cls, b.Body) and not name.startswith("_")
    }
    written_only = {
        *(b.Body, b.TopicStats, b.ConsumeStats),
        *(b.ClientStatus, b.ConsumerStatus, b.OffsetTable, b.RunningInfo),
    }
    assert {type(body) for body in EXAMPLES} == declared - written_only


def test_statistics_are_written_with_object_keys() -> None:
    table = object_map([(b.QueueKey("t", "a", 0), b.ConsumeOffset(2, 1, 0))])
    assert encode_json(b.ConsumeStats(1.5, table)).startswith(
        b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:{'
    )


def test_names_that_camel_case_does_not_give() -> None:
    assert b'"clientID":"c"' in encode_json(b.Heartbeat("c"))
    assert encode_json(b.QueueLockResponse()) == b'{"lockOKMQSet":[]}'


def test_versions_are_equal_only_in_all_parts() -> None:
    assert b.DataVersion(1, 2) == b.DataVersion(1, 2)
    assert b.DataVersion(1, 2) != b.DataVersion(1, 3)
    assert b.DataVersion(1, 2) != b.DataVersion(2, 2)
    assert b.DataVersion(1, 2, 1) != b.DataVersion(1, 2, 2)
    assert msgspec.json.encode(b.DataVersion(1, 2)) == b'{"counter":1,"timestamp":2}'


def test_a_heartbeat_of_a_newer_client_is_read() -> None:
    body = (
        b'{"clientID":"1@2","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING",'
        b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
        b'"subString":"*","subVersion":1,"tagsSet":[],"topic":"t","filterClassSource":"x"}],'
        b'"unitMode":false}],"producerDataSet":[],"heartbeatFingerprint":0,"withoutSub":false}'
    )
    heartbeat = parse_json(body, b.Heartbeat)
    (group,) = heartbeat.consumer_data_set
    assert (heartbeat.client_id, group.group_name) == ("1@2", "g")
    assert group.subscription_data_set[0].sub_string == "*"


@pytest.mark.parametrize(
    "body", [b"[]", b'{"clientID":5}', b'{"clientID":"c","producerDataSet":1}']
)
def test_a_body_of_another_shape_is_refused(body: Any) -> None:
    with pytest.raises(BadRequest, match="JSON body"):
        parse_json(body, b.Heartbeat)


@pytest.mark.parametrize("count", [0, 1, b.PIECE_VALUES, 3 * b.PIECE_VALUES + 1])
def test_a_long_table_is_encoded_in_pieces(count: int) -> None:
    topics = {f"t{number}": b.TopicConfig(f"t{number}", number) for number in range(count)}
    version = b.DataVersion(count, 5)
    pieces = list(b.table_pieces(version, "topicConfigTable", topics))
    assert len(pieces) == 2 + -(-count // b.PIECE_VALUES)
    table = b.TopicConfigTable(version, topics)
    assert parse_json(b"".join(pieces), b.TopicConfigTable) == table
    if count <= 1:
        assert b"".join(pieces) == encode_json(table)


WANTED: Final = SubscriptionData("t", "a||b", 5, ("a", "b"), (97, 98))
MEMBER: Final = ConsumerData(
    "g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", (WANTED,)
)
BEAT: Final = Heartbeat("c", (ProducerData("p"),), (MEMBER,))


def written(
    member: dict[str, Any] | None = None, subscription: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The heartbeat as Java writes it, but for some fields of its parts."""
    wanted = {
        **{"topic": "t", "subString": "a||b", "subVersion": 5, "tagsSet": ["a", "b"]},
        **{"codeSet": [97, 98], "expressionType": "TAG", "classFilterMode": False},
    }
    consumer = {
        **{"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"},
        **{"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False},
        "subscriptionDataSet": [wanted | (subscription or {})],
    }
    members = [consumer | (member or {})]
    return {
        **{"clientID": "c", "producerDataSet": [{"groupName": "p"}]},
        "consumerDataSet": members,
    }


def read(data: object) -> Heartbeat:
    return parse_client_body(json.dumps(data).encode(), Heartbeat)


def respelt(value: Any, spell: Callable[[str], str]) -> Any:
    """A body with other names."""
    if isinstance(value, list):
        return [respelt(item, spell) for item in value]
    if not isinstance(value, dict):
        return value
    return {spell(key): respelt(item, spell) for key, item in value.items()}


def test_java_s_is_read() -> None:
    assert read(written()) == BEAT


@pytest.mark.parametrize(
    "spell",
    [
        lambda name: name[:1].upper() + name[1:],
        str.lower,
        lambda name: re.sub("([A-Z])", r"_\1", name).lower(),
    ],
    ids=["capital", "lower", "snake"],
)
def test_names_may_be_written_otherwise(spell: Callable[[str], str]) -> None:
    assert read(respelt(written(), spell)) == BEAT
    lock = {
        **{"consumerGroup": "g", "clientId": "c"},
        "mqSet": [{"topic": "t", "brokerName": "broker-a", "queueId": 3}],
    }
    data = json.dumps(respelt(lock, spell)).encode()
    expected = QueueLockRequest("g", "c", [QueueKey("t", "broker-a", 3)])
    assert parse_client_body(data, QueueLockRequest) == expected


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("consumeType", "consume_type"),
        ("messageModel", "message_model"),
        ("consumeFromWhere", "consume_from_where"),
    ],
)
def test_an_enumeration_may_be_a_number(name: str, field: str) -> None:
    for number, value in enumerate(ENUMERATIONS[name]):
        assert getattr(read(written({name: number})).consumer_data_set[0], field) == value
    wrong: object
    for wrong in (-1, len(ENUMERATIONS[name]), True, 1.5, []):
        with pytest.raises(BadRequest, match=f"JSON body.*{name}"):
            read(written({name: wrong}))


@pytest.mark.parametrize(("number", "name"), list(enumerate(ENUMERATIONS["consumeResult"])))
def test_go_s_result_of_a_message_consumed_directly(number: int, name: str) -> None:
    data = (
        b'{"order":false,"autoCommit":true,"consumeResult":%d,"remark":"","spentTimeMills":3}'
        % number
    )
    expected = DirectResult(False, True, name, "", 3)
    assert parse_client_body(data, DirectResult) == expected


@pytest.mark.parametrize(
    ("member", "subscription", "changed"),
    [
        ({"consumeFromWhere": None}, {}, {"consume_from_where": "CONSUME_FROM_LAST_OFFSET"}),
        ({"unitMode": None}, {}, {}),
        ({"unitMode": ""}, {}, {}),
        ({"subscriptionDataSet": None}, {}, {"subscription_data_set": ()}),
        ({}, {"subString": None}, {"sub_string": "*"}),
        ({}, {"subVersion": None}, {"sub_version": NO_VERSION}),
        ({}, {"subVersion": ""}, {"sub_version": NO_VERSION}),
        ({}, {"tagsSet": None}, {"tags_set": ()}),
        ({}, {"codeSet": [None, "97"], "classFilterMode": None}, {"code_set": (97,)}),
        ({}, {"codeSet": None, "classFilterMode": ""}, {"code_set": ()}),
    ],
)
def test_what_says_nothing_is_as_if_it_were_not_there(
    member: dict[str, Any], subscription: dict[str, Any], changed: dict[str, Any]
) -> None:
    found = read(written(member, subscription)).consumer_data_set[0]
    if subscription:
        expected = structs.replace(
            MEMBER, subscription_data_set=(structs.replace(WANTED, **changed),)
        )
    else:
        expected = structs.replace(MEMBER, **changed)
    assert found == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"clientID":5}', b'{"clientID":"c","consumerDataSet":[{}]}'],
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="JSON body"):
        parse_client_body(data, Heartbeat)


@pytest.mark.parametrize("data", [b"{}", b'{"clientID":null}', b'{"clientID":""}'])
def test_a_client_without_an_id(data: bytes) -> None:
    assert parse_client_body(data, Heartbeat) == Heartbeat("")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "clientID",
                    "ClientId",
                    "consumerDataSet",
                    "subscriptionDataSet",
                    "topic",
                    "groupName",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_any_json_is_read_or_refused(value: object) -> None:
    found = None
    with suppress(BadRequest):
        found = read(value)
    assert found is None or isinstance(found.client_id, str)


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


@pytest.mark.parametrize(
    ("perm", "can_read", "can_write"),
    [(0, False, False), (2, False, True), (4, True, False), (6, True, True), (7, True, True)],
)
def test_permission_bits(perm: int, can_read: bool, can_write: bool) -> None:
    assert (readable(perm), writable(perm)) == (can_read, can_write)


def test_a_route_survives_its_json() -> None:
    route = TopicRoute(
        [BrokerData("a", {"0": "h:1", "1": "h:2"}, "c")],
        [QueueData("a", 4, 8, 6, 1)],
        {"h:1": ["f:1"]},
        "a:4",
    )
    assert parse_json(encode_json(route), TopicRoute) == route


def test_a_route_is_written_as_upstream_does() -> None:
    route = TopicRoute([BrokerData("a", {"0": "h:1"}, "c")], [QueueData("a", 4, 8, 6)])
    assert encode_json(route) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"a","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,'
        b'"topicSysFlag":0,"writeQueueNums":8}]}'
    )


def test_an_old_name_servers_route_is_read() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"a","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,'
        b'"topicSynFlag":0,"writeQueueNums":4}]}'
    )
    (broker,) = parse_json(body, TopicRoute).broker_datas
    assert broker.broker_addrs == {"0": "h:1", "1": "h:2"}
    assert broker.master() == "h:1"
    assert BrokerData("a", {"1": "h:2"}).master() is None
