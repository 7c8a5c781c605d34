"""Heartbeats without a client id, which no client sends: both brokers answer and keep the same."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.shared_broker import fresh_name
from tests.compat.conftest import Target
from tests.compat.test_odd_clients import DIALECTS, WAIT_S, Odd

pytestmark = pytest.mark.runs("cometmq", "java")


@pytest.fixture
def odd(target: Target) -> Iterator[Odd]:
    host, _, port = target.broker.partition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        yield Odd(DIALECTS[0], connection, "")


def consumer(group: str) -> dict[str, Any]:
    return {
        **{"groupName": group, "consumeType": "CONSUME_PASSIVELY", "unitMode": False},
        **{"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        "subscriptionDataSet": [],
    }


def beat(odd: Odd, **data: Any) -> int:
    return odd.ask(34, body=odd.body(data)).code


def members(odd: Odd, group: str) -> list[str | None]:
    answer = odd.ask(38, {"consumerGroup": group})
    return json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []


def test_it_is_a_member_until_it_leaves(odd: Odd, target: Target) -> None:
    group = fresh_name("g")
    assert beat(odd) == 0
    assert beat(odd, consumerDataSet=[consumer(group)]) == 0
    nobody = "" if target.name == "cometmq" else None
    assert members(odd, group) == [nobody]
    connections = odd.ask(203, {"consumerGroup": group})
    assert connections.code == 0
    assert len(json.loads(connections.body)["connectionSet"]) == 1
    assert odd.ask(35, {"consumerGroup": group}).code == 0
    assert members(odd, group) == []


def test_a_producer_is_entered(odd: Odd) -> None:
    group = fresh_name("p")
    beat(odd, producerDataSet=[{"groupName": group}])
    assert beat(odd, producerDataSet=[{"groupName": group}]) == 0
    connections = odd.ask(204, {"producerGroup": group})
    assert len(json.loads(connections.body)["connectionSet"]) == 1


@pytest.mark.runs("cometmq")
def test_what_is_an_error_in_java(odd: Odd) -> None:
    """Its NullPointerExceptions."""
    group = fresh_name("g")
    for more in ({}, {}, {"clientID": None}, {"clientID": ""}, {"clientID": "me"}):
        found = {"consumerDataSet": [consumer(group)], "producerDataSet": [{"groupName": group}]}
        assert beat(odd, **found, **more) == 0
    assert members(odd, group) == ["me"]
