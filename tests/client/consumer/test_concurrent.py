"""What a broker is told of a message that failed and whose order does not matter."""

from __future__ import annotations

import pytest
from msgspec import structs

from cometmq.client.consumer.failures import SendBack
from cometmq.client.producer import Producer
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageQueue
from cometmq.message.properties import decode
from cometmq.protocol.codes import RequestCode
from tests.client.consumer.test_inflight import message
from tests.client.consumer.test_options import options
from tests.client.fake_broker import fake_cluster, open_session
from tests.client.scripted import Answer

BACK = RequestCode.CONSUMER_SEND_MSG_BACK
QUEUE = MessageQueue("t", "broker-0", 0)


@pytest.mark.parametrize(("given", "sent"), [(-1, 16), (0, 0), (3, 3)])
async def test_a_message_goes_back(given: int, sent: int) -> None:
    stored = structs.replace(message(0), physical_offset=77, properties={"RETRY_TOPIC": "first"})
    async with fake_cluster() as cluster, open_session(cluster) as session:
        cluster.create("t", 1)
        peer = cluster.brokers[0].peer
        peer.on(BACK, Answer())
        wanted = options(max_reconsume_times=given)
        policy = SendBack(session, wanted, Producer(session))
        assert policy.is_final(stored, 2)
        await policy.send_away(QUEUE, stored, 2)
        header = peer.received(BACK)[0].header
        assert (header.offset, header.group, header.delay_level) == (77, "g", 2)
        assert (header.origin_msg_id, header.origin_topic) == (stored.offset_id, "first")
        assert header.max_reconsume_times == sent
        peer.on(BACK, Answer(16, remark="no"))
        with pytest.raises(BrokerRefused):
            await policy.send_away(QUEUE, stored, 0)


@pytest.mark.parametrize(("level", "times", "delay"), [(0, 2, "4"), (7, 2, "7"), (-1, 6, "4")])
async def test_a_broker_that_does_not_have_the_message_gets_it_as_a_whole(
    level: int, times: int, delay: str
) -> None:
    stored = structs.replace(message(0), body=b"x", physical_offset=77, reconsume_times=1)
    async with fake_cluster() as cluster, open_session(cluster) as session:
        cluster.create("t", 1)
        cluster.create("%RETRY%g", 1)
        broker = cluster.brokers[0]
        broker.peer.on(BACK, Answer(1, remark="look message by offset failed, 77"))
        wanted = options(max_reconsume_times=5)
        await SendBack(session, wanted, Producer(session)).send_away(QUEUE, stored, level)
        header = broker.peer.received(RequestCode.SEND_MESSAGE_V2)[0].header
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (
            "%RETRY%g",
            times,
            6,
        )
        record = broker.stored("%RETRY%g")[0]
        properties = decode(record.properties)
        assert (record.body, properties["RETRY_TOPIC"], properties["DELAY"]) == (b"x", "t", delay)
