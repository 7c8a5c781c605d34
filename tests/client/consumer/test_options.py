"""Options are checked before anything is joined, and described to brokers as Java does.

Tags or SQL92: what is told to brokers, and what is looked at again here. Brokers are asked about
SQL92 before a consumer starts, and about nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cometmq.client.consumer.allocate import ByConfig, average, circle
from cometmq.client.consumer.options import (
    Sql,
    SubscribeOptions,
    check_filters,
    make_options,
    parse_filter,
)
from cometmq.client.session import Session
from cometmq.core.errors import BrokerRefused, MessageIllegal, SettingsError
from cometmq.filter.tags import tag_code
from cometmq.message.model import MessageQueue
from cometmq.message.names import Namespace
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json
from tests.client.fake_broker import FakeBroker, FakeCluster
from tests.client.scripted import Answer


def options(topics: Any = "t", **changes: Any) -> SubscribeOptions:
    given: dict[str, Any] = {
        "group": "g",
        "expression": "*",
        "version": 77,
        "concurrency": 8,
        "ordered": False,
        "mode": "clustering",
        "start": "last",
        "max_reconsume_times": -1,
        **changes,
    }
    return make_options(topics, **given)


def test_a_group_reads_its_retry_topic_too() -> None:
    assert options().topics == {"t", "%RETRY%g"}
    assert options(mode="broadcasting").topics == {"t"}
    assert options(expression="a").filter_of("%RETRY%g").matches_all


def test_filters_by_topic() -> None:
    wanted = options({"t": "a || b", "u": "*"})
    assert wanted.filter_of("t").tags == {"a", "b"}
    assert wanted.filter_of("u").matches_all


def test_a_heartbeat_says_what_a_java_client_would() -> None:
    data = parse_json(encode_json(options(expression="b || a").describe()))
    subscriptions = {each["topic"]: each for each in data["subscriptionDataSet"]}
    assert set(subscriptions) == {"t", "%RETRY%g"}
    assert subscriptions["t"]["subString"] == "b || a"
    assert subscriptions["t"]["tagsSet"] == ["a", "b"]
    assert sorted(subscriptions["t"]["codeSet"]) == sorted([tag_code("a"), tag_code("b")])
    assert subscriptions["t"]["subVersion"] == 77
    assert data["groupName"] == "g"
    assert data["consumeType"] == "CONSUME_PASSIVELY"
    assert data["messageModel"] == "CLUSTERING"


@pytest.mark.parametrize(
    ("start", "name", "moment"),
    [
        ("last", "CONSUME_FROM_LAST_OFFSET", None),
        ("first", "CONSUME_FROM_FIRST_OFFSET", None),
        (5000, "CONSUME_FROM_TIMESTAMP", 5000),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), "CONSUME_FROM_TIMESTAMP", 60_000),
    ],
)
def test_starts(start: Any, name: str, moment: int | None) -> None:
    wanted = options(start=start, mode="broadcasting")
    assert wanted.describe().consume_from_where == name
    assert wanted.describe().message_model == "BROADCASTING"
    assert wanted.start_ms() == moment


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"group": ""}, MessageIllegal, "empty"),
        ({"group": "a b"}, MessageIllegal, "a b"),
        ({"topics": "bad topic"}, MessageIllegal, "bad topic"),
        ({"topics": {}}, SettingsError, "at least one"),
        ({"expression": "||"}, SettingsError, "names no tag"),
        ({"expression": "a|b"}, SettingsError, r"'a\|b' contains '\|'. Write a \|\| b for"),
        ({"expression": "a,b"}, SettingsError, r"contains ','. Write a \|\| b"),
        ({"expression": "a, b"}, SettingsError, "contains ','"),
        ({"expression": "a|||b"}, SettingsError, "contains"),
        ({"expression": "a || *"}, SettingsError, "means every message"),
        ({"topics": {"t": "a", "u": "a|b"}}, SettingsError, "contains"),
        ({"concurrency": 0}, SettingsError, "less than 1"),
        ({"mode": "both"}, SettingsError, "broadcasting"),
        ({"start": "middle"}, SettingsError, "middle"),
        ({"allocation": "fair"}, SettingsError, "average, circle"),
        ({"topics": None}, SettingsError, "at least one"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        options(changes.pop("topics", "t"), **changes)


def test_names_of_a_namespace_are_the_brokers() -> None:
    wanted = options({"t": "a", "u": "*"}, namespace=Namespace("ns"))
    assert wanted.group == "ns%g"
    assert wanted.topics == {"ns%t", "ns%u", "%RETRY%ns%g"}
    assert wanted.filter_of("ns%t").tags == {"a"}


def test_a_group_whose_retry_topic_would_be_too_long() -> None:
    options(group="g" * 120)
    with pytest.raises(MessageIllegal, match="limit is 120"):
        options(group="g" * 121)


def test_ways_to_share_are_named_or_one_s_own() -> None:
    assert options().allocation is average
    assert options(allocation="circle").allocation is circle
    assert options(allocation=average).allocation is average
    mine = ByConfig([MessageQueue("t", "broker-a", 0)])
    found = options(allocation=mine, namespace=Namespace("ns")).allocation
    assert found == ByConfig([MessageQueue("ns%t", "broker-a", 0)])


def test_who_polls_needs_no_topic_and_reads_no_retries() -> None:
    assert options(None, polls=True).topics == set()
    assert options(polls=True).topics == {"t"}
    assert options(polls=True).describe().consume_type == "CONSUME_ACTIVELY"


def test_tags_are_a_text_and_sql_says_so() -> None:
    assert parse_filter("a || b").kind == "TAG"
    assert parse_filter("a || b").tags == {"a", "b"}
    wanted = Sql("price > 5 AND region IN ('AD', 'FR')")
    assert parse_filter(wanted) is wanted
    assert wanted.kind == "SQL92"
    assert not wanted.tags
    assert not wanted.codes
    assert wanted.matches_all
    assert wanted.accepts("anything")


def test_sql_that_cannot_be_read_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="character 7"):
        Sql("price >")


def test_heartbeats_carry_the_expression() -> None:
    described = options({"t": Sql("a = 1"), "u": "x"}).describe().subscription_data_set
    found = {each.topic: (each.expression_type, each.sub_string) for each in described}
    assert found == {
        "t": ("SQL92", "a = 1"),
        "u": ("TAG", "x"),
        "%RETRY%g": ("TAG", "*"),
    }


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
