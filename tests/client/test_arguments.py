"""Arguments of wrong types: refused at once, by name, before anything is sent or connected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from typing import Any

import pytest

from cometmq.client.client import Client
from cometmq.core.errors import CometError, MessageIllegal, SettingsError, WrongArgument
from cometmq.message.model import Message, from_record
from tests.client.fake_broker import FakeCluster, quick_config

#: Nothing listens there: a call that came so far would raise NotConnected.
NOWHERE = "127.0.0.1:1"


@pytest.fixture
async def unconnected() -> AsyncIterator[Client]:
    async with Client(NOWHERE) as client:
        yield client


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"topic": 5}, "^topic must be str or Message, not int"),
    ({"topic": ["t"]}, "^topic must be str or Message, not list"),
    ({"body": "text"}, "^body must be bytes, not str: encode it$"),
    ({"body": {"a": 1}}, "^body must be bytes, not dict: encode it, for example as JSON"),
    ({"body": 7}, "^body must be bytes, not int"),
    ({"body": None}, "^body is missing: pass b'' for an empty one"),
    ({"tag": 7}, "^tag must be str, not int"),
    ({"tag": b"a"}, "^tag must be str, not bytes: decode it"),
    ({"keys": [1.5]}, r"^keys\[0\] must be str or int, not float: write it as text"),
    ({"keys": ["a", None]}, r"^keys\[1\] must be str or int, not NoneType"),
    ({"keys": [True]}, r"^keys\[0\] must be str or int, not bool"),
    ({"keys": b"k"}, "^keys must be a sequence of str or int, not bytes"),
    ({"properties": {"a": 1}}, r"^properties\['a'\] must be str, not int: write it as text"),
    ({"properties": {1: "a"}}, "^the property name 1 must be str, not int"),
    ({"properties": [("a", "b")]}, "^properties must be a mapping of str to str, not list"),
    ({"delay_level": "3"}, "^delay_level must be int, not str"),
    ({"delay_level": True}, "^delay_level must be int, not bool"),
    ({"delay_s": "3"}, "^delay_s must be a number of seconds, not str"),
    ({"deliver_at": 1_700_000_000}, "^deliver_at must be a datetime with a time zone, not int"),
    ({"deliver_at": date(2030, 1, 1)}, "^deliver_at must be a datetime"),
    ({"order_key": 1.5}, "^order_key must be str or int, not float"),
    ({"queue": 3}, "^queue must be a MessageQueue or a function that picks one, not int"),
    ({"timeout_ms": "3"}, "^timeout_ms must be a number of milliseconds, not str"),
    ({"timeout_ms": float("inf")}, "^timeout_ms must be a finite number, not inf"),
    ({"timeout_ms": float("nan")}, "^timeout_ms must be a finite number, not nan"),
]


@pytest.mark.parametrize(("given", "told"), WRONG)
async def test_a_wrong_argument_of_a_send_is_named(
    unconnected: Client, given: dict[str, Any], told: str
) -> None:
    arguments = {"topic": "t", "body": b"", **given}
    with pytest.raises(WrongArgument, match=told) as raised:
        await unconnected.send(**arguments)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, MessageIllegal)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Message(5, b""), "^topic must be str"),  # type: ignore[arg-type]
        (Message(["t"], b""), "^topic must be str"),  # type: ignore[arg-type]
        (Message("t", "text"), "^body must be bytes"),  # type: ignore[arg-type]
        (Message("t", 5), "^body must be bytes"),  # type: ignore[arg-type]
        (Message("t", b"", keys="abc"), r"^keys must be a tuple of str, not str: write keys=\(key"),  # type: ignore[arg-type]
        (Message("t", b"", keys=(17,)), r"^keys\[0\] must be str, not int: use str\(key\)"),  # type: ignore[arg-type]
        (Message("t", b"", message_id=5), "^message_id must be str"),  # type: ignore[arg-type]
        (Message("t", b"", flag="x"), "^flag must be int"),  # type: ignore[arg-type]
        (Message("t", b"", born_ms="x"), "^born_ms must be int"),  # type: ignore[arg-type]
        (Message("t", b"", delay_ms=1.5), "^delay_ms must be int"),  # type: ignore[arg-type]
    ],
)
async def test_a_wrong_field_of_a_message_is_named(
    unconnected: Client, message: Message, told: str
) -> None:
    with pytest.raises(WrongArgument, match=told):
        await unconnected.send(message)
    with pytest.raises(WrongArgument, match=told):
        await unconnected.send_batch([message])
    with pytest.raises(WrongArgument, match=told):
        await unconnected.send_many([message])


async def test_a_topic_with_a_route_is_checked_too(cluster: FakeCluster) -> None:
    async with Client(config=quick_config(cluster)) as client:
        await client.send("t", b"")
        for topic in (5, ["t"]):
            with pytest.raises(WrongArgument, match=r"^topic must be str"):
                await client.send(Message(topic, b""))  # type: ignore[arg-type]


async def test_what_is_no_message_is_refused(unconnected: Client) -> None:
    with pytest.raises(WrongArgument, match=r"^messages\[1\] must be Message, not bytes"):
        await unconnected.send_batch([Message("t", b""), b"body"])  # type: ignore[list-item]
    with pytest.raises(WrongArgument, match=r"^messages must be a sequence of Message, not int"):
        await unconnected.send_many(5)  # type: ignore[arg-type]


async def test_other_calls_check_their_arguments(unconnected: Client) -> None:
    with pytest.raises(WrongArgument, match=r"^body must be bytes"):
        await unconnected.send_oneway("t", "text")  # type: ignore[arg-type]
    with pytest.raises(WrongArgument, match=r"^body must be bytes"):
        await unconnected.request("t", "text")  # type: ignore[arg-type]
    with pytest.raises(WrongArgument, match=r"^body must be bytes"):
        unconnected.transaction("t", "text")  # type: ignore[arg-type]
    with pytest.raises(WrongArgument, match=r"^timeout_ms must be a number"):
        await unconnected.request("t", b"", timeout_ms="3")  # type: ignore[arg-type]
    with pytest.raises(WrongArgument, match=r"^timeout_ms must be a number"):
        await unconnected.send_many([Message("t", b"")], timeout_ms="3")  # type: ignore[arg-type]
    with pytest.raises(WrongArgument, match=r"^handler must be a function, not NoneType"):
        await unconnected.subscribe("t", group="g").run(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topics": ["a", "b"]}, "^topics must be str or a mapping of topics to filters, not list"),
        ({"topics": {5: "*"}}, "^a name in topics must be str, not int"),
        ({"group": 5}, "^group must be str, not int"),
        ({"filter": ["a"]}, "^the filter of 't' must be str or Sql, not list"),
        ({"concurrency": "8"}, "^concurrency must be int, not str"),
        ({"max_reconsume_times": "8"}, "^max_reconsume_times must be int"),
        ({"start": None}, "^start must be 'last', 'first', or a time as int .* not NoneType"),
        ({"allocation": 5}, "^allocation must be a function, not int"),
    ],
)
async def test_a_wrong_argument_of_a_subscription_is_named(
    unconnected: Client, given: dict[str, Any], told: str
) -> None:
    arguments = {"topics": "t", "group": "g", **given}
    with pytest.raises(WrongArgument, match=told):
        unconnected.subscribe(**arguments)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name_servers": 9876}, "9876 is not an address such as"),
        ({"name_servers": [9876]}, "is not an address such as"),
        ({"send_retries": "2"}, "'2' is not a whole number"),
        ({"send_retries": True}, "True is not a whole number"),
        ({"namespace": None}, "None is not a text"),
        ({"trace": "yes"}, "'yes' is not True or False"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Client(**{"name_servers": NOWHERE, **given})


async def test_integers_are_keys(cluster: FakeCluster) -> None:
    async with Client(config=quick_config(cluster)) as client:
        await client.send("t", b"1", keys=[17, "x"], order_key=17)
        await client.send("t", b"2", keys=17, order_key="17")
        await client.send_many([Message("t", b"3"), Message("t", b"4")], order_key=17)
        await client.send_many([Message("t", b"5")], order_key=lambda _: 17)
    (records,) = [each.stored("t") for each in cluster.brokers if each.stored("t")]
    stored = [from_record(each) for each in records]
    assert [each.body for each in stored] == [b"1", b"2", b"3", b"4", b"5"]
    assert [each.keys for each in stored[:2]] == [("17", "x"), ("17",)]


async def test_a_delay_level_above_the_highest_is_left_to_the_broker(cluster: FakeCluster) -> None:
    async with Client(config=quick_config(cluster)) as client:
        await client.send("t", b"", delay_level=99)
    (record,) = [each for broker in cluster.brokers for each in broker.stored("t")]
    assert from_record(record).delay_level == 99


async def test_groups_that_java_s_client_refuses(unconnected: Client) -> None:
    with pytest.raises(MessageIllegal, match="the group cannot be DEFAULT_CONSUMER"):
        unconnected.subscribe("t", group="DEFAULT_CONSUMER")
    with pytest.raises(MessageIllegal, match="the group cannot be DEFAULT_CONSUMER"):
        unconnected.pull_consumer("t", group="DEFAULT_CONSUMER")
    with pytest.raises(MessageIllegal, match="the producer group cannot be DEFAULT_PRODUCER"):
        unconnected.transaction("t", b"", group="DEFAULT_PRODUCER")


async def test_all_errors_of_use_are_of_the_package(unconnected: Client) -> None:
    from cometmq.client.consumer.options import Sql

    with pytest.raises(CometError, match="not open"):
        Client(NOWHERE).subscribe("t", group="g")
    with pytest.raises(CometError, match="at character"):
        Sql("a >")
    with pytest.raises(CometError, match="names no tag"):
        unconnected.subscribe("t", group="g", filter="||")
    unconnected.transaction_checker("p")(lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(CometError, match="already has a transaction checker of group 'p'"):
        unconnected.transaction_checker("p")(lambda _: None)  # type: ignore[arg-type, return-value]
