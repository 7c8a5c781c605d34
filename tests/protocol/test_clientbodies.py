"""Bodies of clients of all languages; a Java 4.9.7 broker was asked what each heartbeat means."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    ConsumerData,
    DirectResult,
    Heartbeat,
    ProducerData,
    QueueKey,
    QueueLockRequest,
    SubscriptionData,
)
from cometmq.protocol.clientbodies import ENUMERATIONS, parse_client_body

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
        ({}, {"subVersion": None}, {"sub_version": 0}),
        ({}, {"subVersion": ""}, {"sub_version": 0}),
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
    [b"", b"[]", b"{", b"{}", b'{"clientID":null}', b'{"clientID":"c","consumerDataSet":[{}]}'],
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="JSON body"):
        parse_client_body(data, Heartbeat)


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
