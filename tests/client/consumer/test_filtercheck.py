"""Brokers are asked about SQL92 before a consumer starts, and about nothing else."""

from __future__ import annotations

import pytest

from cometmq.client.consumer.options import Sql
from cometmq.client.consumer.starting import check_filters
from cometmq.client.session import Session
from cometmq.core.errors import BrokerRefused
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster
from tests.client.scripted import Answer

CHECK = RequestCode.CHECK_CLIENT_CONFIG


async def test_tags_need_no_question(session: Session, broker: FakeBroker) -> None:
    await check_filters(session, options(expression="a || b"))
    assert not broker.peer.received(CHECK)


async def test_each_topic_with_sql_is_asked_about(
    session: Session, cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("u", 4)
    broker.peer.on(CHECK, Answer())
    await check_filters(session, options({"t": Sql("a = 1"), "u": Sql("b = 2"), "v": "x"}))
    bodies = [parse_json(each.body) for each in broker.peer.received(CHECK)]
    assert [each["subscriptionData"]["subString"] for each in bodies] == ["a = 1", "b = 2"]
    assert {(each["clientId"], each["group"]) for each in bodies} == {(session.client_id, "g")}


async def test_a_refusal_says_why(session: Session, broker: FakeBroker) -> None:
    broker.peer.on(CHECK, Answer(23, remark="parse failed"))
    with pytest.raises(BrokerRefused, match="parse failed"):
        await check_filters(session, options(expression=Sql("a = 1")))


async def test_of_a_topic_that_is_not_there_nobody_is_asked(
    session: Session, broker: FakeBroker
) -> None:
    await check_filters(session, options({"later": Sql("a = 1")}))
    assert not broker.peer.received(CHECK)
