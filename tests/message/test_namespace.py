"""Names with a namespace, as the Java client forms them, and back."""

from __future__ import annotations

import pytest
from msgspec import structs

from cometmq.message.model import MessageQueue, from_record
from cometmq.message.names import Namespace
from tests.message.test_model import stored

NS = Namespace("ns")


@pytest.mark.parametrize(
    ("user", "broker"),
    [
        ("t", "ns%t"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("%DLQ%g", "%DLQ%ns%g"),
        ("nst", "ns%nst"),
        ("other%t", "ns%other%t"),
    ],
)
def test_there_and_back(user: str, broker: str) -> None:
    assert NS.wrap(user) == NS.wrap(broker) == broker
    assert NS.unwrap(broker) == NS.unwrap(user) == user
    assert Namespace().wrap(user) == Namespace().unwrap(user) == user


@pytest.mark.parametrize(
    "name", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer", "CID_RMQ_SYS_TRANS"]
)
def test_the_systems_own_names_stay(name: str) -> None:
    assert NS.wrap(name) == name


def test_names_of_other_namespaces_stay() -> None:
    assert NS.unwrap("other%t") == "other%t"


def test_queues() -> None:
    user, broker = MessageQueue("t", "a", 1), MessageQueue("ns%t", "a", 1)
    assert NS.wrap_queue(user) == broker
    assert NS.unwrap_queue(broker) == user
    assert Namespace().wrap_queue(user) is user
    assert Namespace().unwrap_queue(broker) is broker


def test_messages() -> None:
    message = from_record(stored({"RETRY_TOPIC": "ns%t", "mine": "ns%x"}))
    retried = structs.replace(message, topic="%RETRY%ns%g")
    shown = NS.unwrap_message(retried)
    assert shown.topic == "%RETRY%g"
    assert shown.properties == {"RETRY_TOPIC": "t", "mine": "ns%x"}
    assert NS.unwrap_message(structs.replace(message, topic="ns%t")).topic == "t"
    assert Namespace().unwrap_message(retried) is retried


def test_an_empty_one_is_false() -> None:
    assert NS
    assert not Namespace()
