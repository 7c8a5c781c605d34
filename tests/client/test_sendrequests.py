"""What a message, a batch and a retried message become on the wire. Answers to sends become
results, or say what is wrong with them."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from cometmq.client.config import ClientConfig
from cometmq.client.sendrequests import Packed, Packer, SendResult, SendStatus, read_results
from cometmq.core.errors import BadRequest, BrokerRefused, CometError, MessageIllegal
from cometmq.message import batch, properties
from cometmq.message.model import Message, MessageQueue, StoredMessage
from cometmq.message.names import Namespace
from cometmq.message.record import COMPRESSED
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Response

QUEUE = MessageQueue("t", "broker-a", 3)


def packer(namespace: str = "", **settings: Any) -> Packer:
    return Packer(ClientConfig(("a:1",), **settings), Namespace(namespace))


def single(message: Message, **settings: Any) -> Packed:
    return packer(**settings).single(message, "KEY", 1234)


def test_a_message_with_everything() -> None:
    message = Message(
        "t", b"body", tag="up", keys=("k1", "k2"), flag=7, delay_level=3, properties={"a": "b"}
    )
    packed = single(message)
    assert properties.decode_text(packed.properties) == {
        "a": "b",
        "TAGS": "up",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "WAIT": "true",
        "UNIQ_KEY": "KEY",
    }
    header = packed.header("g", QUEUE, 4)
    assert (header.topic, header.queue_id, header.broker_name) == ("t", 3, "broker-a")
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert (header.producer_group, header.flag, header.born_timestamp) == ("g", 7, 1234)
    assert (header.sys_flag, header.batch, header.reconsume_times) == (0, False, 0)
    assert packed.body == b"body"


@pytest.mark.parametrize(
    ("size", "compressed"), [(4095, False), (4096, True), (100_000, True), (0, False)]
)
def test_large_bodies_are_compressed(size: int, compressed: bool) -> None:
    packed = single(Message("t", b"x" * size))
    assert packed.sys_flag == (COMPRESSED if compressed else 0)
    body = zlib.decompress(packed.body) if compressed else packed.body
    assert body == b"x" * size


def test_what_compression_makes_larger_is_left_as_it_is() -> None:
    # Level 0 stores the body as it is, with some bytes round it.
    packed = single(Message("t", b"x" * 5000), compress_level=0)
    assert (packed.sys_flag, packed.body) == (0, b"x" * 5000)


def test_properties_at_the_limit_pass() -> None:
    rest = len(single(Message("t", b"", properties={"x": "y"})).properties) - 1
    value = "y" * (32_767 - rest)
    assert len(single(Message("t", b"", properties={"x": value})).properties) == 32_767
    with pytest.raises(MessageIllegal):
        single(Message("t", b"", properties={"x": value + "y"}))


def test_a_batch_carries_each_message_with_its_own_properties() -> None:
    messages = [Message("t", b"1", tag="a", flag=1), Message("t", b"2", keys=("k",), flag=2)]
    packed = packer().batch(messages, ["K1", "K2"], 5)
    assert packed.code == RequestCode.SEND_BATCH_MESSAGE
    assert packed.header("g", QUEUE, 4).batch is True
    assert packed.properties == ""
    first, second = batch.split(packed.body)
    assert (first.body, first.flag) == (b"1", 1)
    assert properties.decode(first.properties) == {"TAGS": "a", "UNIQ_KEY": "K1"}
    assert (second.body, second.flag) == (b"2", 2)
    assert properties.decode(second.properties) == {"KEYS": "k", "UNIQ_KEY": "K2"}


def test_a_batch_that_need_not_wait_says_so_once() -> None:
    packed = packer().batch([Message("t", b"", wait_store=False)] * 2, ["1", "2"], 5)
    assert packed.properties == "WAIT\x01false"


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([Message("t", b""), Message("t", b"", keys=("a b",))], "blank"),
        ([Message("t", b""), Message("u", b"")], "topics 't' and 'u'"),
        ([Message("t", b"x" * 80), Message("t", b"y" * 80)], "limit is 200: send_many splits it"),
    ],
)
def test_a_batch_is_held_to_the_limits_too(messages: list[Message], problem: str) -> None:
    with pytest.raises(MessageIllegal, match=problem):
        packer(max_message_bytes=200).batch(messages, ["1", "2"], 5)


def test_messages_may_say_when_they_were_born() -> None:
    born = Message("t", b"", born_ms=99)
    assert single(born).header("g", QUEUE, 4).born_timestamp == 99
    assert packer().batch([born, born], ["1", "2"], 5).header("g", QUEUE, 4).born_timestamp == 99


def test_names_of_a_namespace() -> None:
    message = Message("t", b"")
    one = packer("ns").single(message, "K", 5)
    assert (one.topic, one.messages) == ("ns%t", (message,))
    assert properties.decode_text(one.properties)["INSTANCE_ID"] == "ns"
    many = packer("ns").batch([message], ["K"], 5)
    assert many.topic == "ns%t"
    with pytest.raises(MessageIllegal, match="130 characters"):
        packer("n" * 9).single(Message("t" * 120, b""), "K", 5)


def stored(**properties: str) -> StoredMessage:
    return StoredMessage(
        topic="t", queue_id=1, queue_offset=2, physical_offset=3, body=b"x" * 5000,
        properties=properties, flag=9, sys_flag=0, born_ms=1, born_host=bytes(8), store_ms=1,
        store_host=bytes(8), reconsume_times=4, prepared_offset=0, size_bytes=100,
        broker_name="b",
    )  # fmt: skip


def retry(message: StoredMessage, namespace: str = "") -> Packed:
    return packer(namespace).retry(
        message, "%RETRY%g", "NEW", 7,
        reconsume_times=5, max_reconsume_times=5, delay_level=7,
    )  # fmt: skip


def test_a_message_for_the_retry_topic_remembers_where_it_came_from() -> None:
    packed = retry(stored(UNIQ_KEY="OLD", TAGS="up", DELAY="1", REAL_TOPIC="t", REAL_QID="1"))
    pairs = properties.decode_text(packed.properties)
    assert pairs == {
        "UNIQ_KEY": "OLD",
        "TAGS": "up",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": "OLD",
        "DELAY": "7",
    }
    header = packed.header("g", MessageQueue("%RETRY%g", "b", 0), 4)
    assert (header.reconsume_times, header.max_reconsume_times) == (5, 5)
    assert (header.topic, header.flag, header.sys_flag) == ("%RETRY%g", 9, COMPRESSED)


def test_a_message_retried_before_keeps_its_first_origin() -> None:
    packed = retry(stored(RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="ID"))
    pairs = properties.decode_text(packed.properties)
    assert (pairs["RETRY_TOPIC"], pairs["ORIGIN_MESSAGE_ID"]) == ("first", "ID")
    assert pairs["UNIQ_KEY"] == "NEW"


def test_a_retried_message_of_a_namespace_names_its_topic_as_brokers_do() -> None:
    for message in (stored(), stored(RETRY_TOPIC="t"), stored(RETRY_TOPIC="ns%t")):
        pairs = properties.decode_text(retry(message, "ns").properties)
        assert pairs["RETRY_TOPIC"] == "ns%t"


SENT_TO = MessageQueue("t", "a", 1)
PACKER = Packer(ClientConfig(("a:1",)), Namespace())
SINGLE = PACKER.single(Message("t", b""), "K", 0)
BATCH = PACKER.batch([Message("t", b"")] * 2, ["K1", "K2"], 0)


def answer(code: int = 0, remark: str | None = None, **ext: str) -> Response:
    return Response(code, 1, remark, ext, b"")


@pytest.mark.parametrize("status", SendStatus)
def test_a_stored_message(status: SendStatus) -> None:
    ext = {"msgId": "ID", "queueId": "1", "queueOffset": "5", "transactionId": "T"}
    (result,) = read_results("h:1", SINGLE, SENT_TO, answer(status.value, **ext))
    assert result == SendResult(status, "K", "ID", SENT_TO, 5, "T")


def test_a_message_that_waits_has_a_recall_handle() -> None:
    ext = {"msgId": "ID", "queueId": "1", "queueOffset": "5", "recallHandle": "H"}
    (result,) = read_results("h:1", SINGLE, SENT_TO, answer(0, **ext))
    assert result.recall_handle == "H"


def test_a_broker_may_choose_another_queue() -> None:
    (result,) = read_results(
        "h:1", SINGLE, SENT_TO, answer(msgId="ID", queueId="3", queueOffset="5")
    )
    assert result.queue == MessageQueue("t", "a", 3)


def test_messages_of_a_batch_lie_behind_each_other() -> None:
    first, second = read_results(
        "h:1", BATCH, SENT_TO, answer(msgId="ID1,ID2", queueId="1", queueOffset="5")
    )
    assert (first.message_id, first.offset_id, first.queue_offset) == ("K1", "ID1", 5)
    assert (second.message_id, second.offset_id, second.queue_offset) == ("K2", "ID2", 6)


def test_messages_of_a_batch_lie_apart_where_some_were_stored_before() -> None:
    ext: dict[str, Any] = {
        "msgId": "ID1,ID2",
        "queueId": "1",
        "queueOffset": "5",
        "queueOffsets": "5,3",
    }
    results = read_results("h:1", BATCH, SENT_TO, answer(**ext))
    assert [result.queue_offset for result in results] == [5, 3]
    with pytest.raises(CometError, match="1 queue offsets for 2 messages"):
        read_results("h:1", BATCH, SENT_TO, answer(**{**ext, "queueOffsets": "5,x"}))


def test_a_refusal() -> None:
    with pytest.raises(BrokerRefused, match="disk full") as caught:
        read_results("h:1", SINGLE, SENT_TO, answer(14, "disk full"))
    assert (caught.value.code, caught.value.address) == (14, "h:1")


def test_answers_that_do_not_fit() -> None:
    with pytest.raises(CometError, match="1 ids for 2 messages"):
        read_results("h:1", BATCH, SENT_TO, answer(msgId="ID", queueId="1", queueOffset="5"))
    with pytest.raises(BadRequest, match="queueId is missing"):
        read_results("h:1", SINGLE, SENT_TO, answer(msgId="ID"))
    with pytest.raises(BadRequest, match="queueOffset"):
        read_results("h:1", SINGLE, SENT_TO, answer(msgId="ID", queueId="1", queueOffset="x"))


def test_messages_with_nothing_but_a_body_are_packed_as_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = [Message("t", b"%d" % at, wait_store=False) for at in range(3)]
    packed = PACKER.batch(plain, ["K1", "K2", "K3"], 5)
    assert PACKER.plain_bodies(plain) == [b"0", b"1", b"2"]
    monkeypatch.setattr(Packer, "plain_bodies", lambda *_: None)
    assert PACKER.batch(plain, ["K1", "K2", "K3"], 5) == packed


@pytest.mark.parametrize(
    "odd",
    [
        {"topic": "u"}, {"tag": "x"}, {"keys": ("k",)}, {"properties": {"a": "b"}}, {"flag": 1},
        {"message_id": "M"}, {"born_ms": 5}, {"delay_level": 1}, {"delay_ms": 1}, {"body": 5},
        {"deliver_at_ms": 1}, {"wait_store": False}, {"body": bytearray()}, {"body": bytes(99)},
    ],
)  # fmt: skip
def test_messages_with_more_than_a_body_are_not_plain(odd: dict[str, Any]) -> None:
    message = Message(**{"topic": "t", "body": b"", **odd})
    assert packer(max_message_bytes=98).plain_bodies([Message("t", b""), message]) is None


def test_a_plain_batch_has_a_legal_topic_and_no_namespace() -> None:
    with pytest.raises(MessageIllegal, match="may only contain"):
        PACKER.plain_bodies([Message("bad topic", b"")])
    assert PACKER.plain_bodies([Message("%RETRY%g", b"")]) is None
    assert packer("ns").plain_bodies([Message("t", b"")]) is None


@pytest.mark.core
@pytest.mark.parametrize("offset", [(1 << 63) - 1, (1 << 63) - 2, 1 << 63, 1 << 200, -(1 << 63)])
def test_offsets_that_no_queue_has_are_a_bad_answer(offset: int) -> None:
    with pytest.raises(CometError, match="impossible queue offset"):
        read_results(
            "h:1", BATCH, SENT_TO, answer(msgId="A,B", queueId="1", queueOffset=str(offset))
        )
