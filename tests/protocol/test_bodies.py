"""Bodies under their upstream names."""

from typing import Any

import msgspec
import pytest

from cometmq.core.errors import BadRequest
from cometmq.protocol import bodies as b
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
    b.ConsumerIds(["c"]),
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
