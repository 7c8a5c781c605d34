"""Frames written by hand as other clients write them, and the codes that mqadmin does not ask for.

`record.py` sends them to the real broker and name server and keeps the answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

TOPIC = "golden"
GROUP = "golden-group"
#: What the C++ client adds to every request when it has no credentials.
CPP_EMPTY = {"Signature": "", "AccessKey": "", "OnsChannel": ""}
PROPERTIES = "TAGS\x01a\x02KEYS\x01k1\x02UNIQ_KEY\x01{}\x02WAIT\x01true"
Value = str | int | bool


@dataclass(frozen=True, slots=True)
class Handmade:
    """One frame to send: by whom it is written so, to which server, and what is odd in it."""

    name: str
    server: str
    who: str
    what: str
    frame: bytes
    answered: bool = True


def framed(header: bytes, body: bytes = b"") -> bytes:
    """A frame with a JSON header."""
    length = (4 + len(header) + len(body)).to_bytes(4, "big")
    return length + len(header).to_bytes(4, "big") + header + body


def cpp(code: int, opaque: int, ext: dict[str, Value], body: bytes = b"", flag: int = 0) -> bytes:
    """As rocketmq-client-cpp 2.x does: keys sorted, an empty remark, a line feed at the end."""
    head = {"code": code, "extFields": ext | CPP_EMPTY, "flag": flag, "language": "CPP"}
    head |= {"opaque": opaque, "remark": "", "version": 333}
    return framed(json.dumps(head, sort_keys=True, separators=(",", ":")).encode() + b"\n", body)


def ali_ons(code: int, opaque: int, ext: dict[str, Value], body: bytes = b"") -> bytes:
    """As ali-ons (Node) does: numbers and booleans stay what they are, version 121."""
    head = {"code": code, "language": "JAVA", "version": 121, "opaque": opaque, "flag": 0}
    head["extFields"] = ext
    return framed(json.dumps(head, separators=(",", ":")).encode(), body)


def plain(code: int, opaque: int, ext: dict[str, Value] | None = None, body: bytes = b"") -> bytes:
    """As the Java client does."""
    head = {"code": code, "extFields": ext or {}, "flag": 0, "language": "JAVA"}
    head |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 407}
    return framed(json.dumps(head, separators=(",", ":")).encode(), body)


def go(code: int, opaque: int, ext: dict[str, Value], body: bytes = b"") -> bytes:
    """As rocketmq-client-go does: its language, version 317, an empty remark."""
    head = {"code": code, "language": "GO", "version": 317, "opaque": opaque, "flag": 0}
    head |= {"remark": "", "extFields": ext}
    return framed(json.dumps(head, separators=(",", ":")).encode(), body)


def unique_key(number: int) -> str:
    """A message id as a producer makes them."""
    return f"7F000001{number:024X}"


def short_send(number: int) -> dict[str, str]:
    """The fields of code 310 under their short names, as text."""
    return {
        **{"a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"},
        **{"g": "1700000000000", "h": "0", "i": PROPERTIES.format(unique_key(number))},
        **{"j": "0", "k": "0", "l": "-1"},
    }


def heartbeat(client_id: str) -> bytes:
    """A consumer's heartbeat, its tag codes included."""
    subscription = {"classFilterMode": False, "codeSet": ["97"], "subString": "a"}
    subscription |= {"subVersion": "1700000000000", "tagsSet": ["a"], "topic": TOPIC}
    consumer = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY"}
    consumer |= {"groupName": GROUP, "messageModel": "CLUSTERING", "unitMode": False}
    data = {"clientID": client_id, "consumerDataSet": [{**consumer, "subscriptionDataSet": []}]}
    data["consumerDataSet"] = [{**consumer, "subscriptionDataSet": [subscription]}]
    data["producerDataSet"] = [{"groupName": "producers"}]
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def pull() -> dict[str, str]:
    """The fields of a pull with its subscription, as text."""
    return {
        **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0"},
        **{"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"},
        **{"subscription": "*", "subVersion": "0"},
    }


def numbers(texts: dict[str, str]) -> dict[str, Value]:
    """The same fields as ali-ons holds them: whole numbers where the text is one."""
    return {
        key: int(value) if value.lstrip("-").isdigit() else value for key, value in texts.items()
    }


def of_other_clients() -> list[Handmade]:
    """C++, ali-ons and Go."""
    sends = {n: {**short_send(n)} for n in range(1, 5)}
    single, batch_flag, node = sends[1] | {"m": "1"}, sends[2] | {"m": "0"}, numbers(sends[3])
    node |= {"k": False}
    long_names: dict[str, Value] = {
        **{"producerGroup": "producers", "topic": TOPIC, "defaultTopic": "TBW102"},
        **{"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0"},
        **{"bornTimestamp": "1700000000000", "flag": "0", "reconsumeTimes": "0"},
        **{"properties": PROPERTIES.format(unique_key(4)), "unitMode": "false"},
        **{"batch": "false", "maxReconsumeTimes": "0"},
    }
    text_pull: dict[str, Value] = dict(pull())
    route: dict[str, Value] = {"topic": TOPIC}
    group: dict[str, Value] = {"consumerGroup": GROUP}
    key: dict[str, Value] = {**group, "topic": TOPIC, "queueId": "0"}
    offset = numbers({"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"})
    return [
        Handmade("cpp-send", "broker", "cpp", 'a single send with "m":"1"', cpp(310, 1, single, b"one")),
        Handmade("cpp-send-m0", "broker", "cpp", 'a single send with "m":"0"', cpp(310, 2, batch_flag, b"two")),
        Handmade("cpp-route", "namesrv", "cpp", "a route", cpp(105, 3, route)),
        Handmade("cpp-heartbeat", "broker", "cpp", "numbers as text in codeSet", cpp(34, 4, {}, heartbeat("127.0.0.1@1#cpp"))),
        Handmade("cpp-pull", "broker", "cpp", "a pull without expressionType", cpp(11, 5, text_pull)),
        Handmade("cpp-query-offset", "broker", "cpp", "an offset never committed", cpp(14, 6, key)),
        Handmade("cpp-consumer-list", "broker", "cpp", "members of a group", cpp(38, 7, group)),
        Handmade("cpp-update-offset", "broker", "cpp", "a one-way commit", cpp(15, 8, key | {"commitOffset": "1"}, flag=2), answered=False),
        Handmade("ali-ons-send", "broker", "ali-ons", "numbers and a boolean in extFields", ali_ons(310, 11, node, b"three")),
        Handmade("ali-ons-pull", "broker", "ali-ons", "numbers in extFields", ali_ons(11, 12, numbers(pull()))),
        Handmade("ali-ons-query-offset", "broker", "ali-ons", "a number in extFields", ali_ons(14, 13, offset)),
        Handmade("ali-ons-max-offset", "broker", "ali-ons", "a number in extFields", ali_ons(30, 14, numbers({"topic": TOPIC, "queueId": "0"}))),
        Handmade("go-send", "broker", "go", "code 10, long names", go(10, 21, long_names, b"four")),
        Handmade("go-route", "namesrv", "go", "a route", go(105, 22, route)),
    ]  # fmt: skip


def of_rare_codes() -> list[Handmade]:
    """Codes that slaves and dashboards ask for, and requests that are wrong."""
    wrong_queue: dict[str, Value] = {**pull(), "queueId": "99"}
    no_topic: dict[str, Value] = {**pull(), "topic": "missing"}
    forbidden: dict[str, Value] = {**short_send(9), "b": "SCHEDULE_TOPIC_XXXX"}
    bad_name: dict[str, Value] = {**short_send(9), "b": "bad name"}
    spread: dict[str, Value] = {"topic": TOPIC, "group": GROUP}
    brokers = "broker"
    return [
        Handmade("all-topic-config", brokers, "slave", "code 21", plain(21, 101)),
        Handmade("all-group-config", brokers, "slave", "code 201", plain(201, 102)),
        Handmade("all-consumer-offset", brokers, "slave", "code 43", plain(43, 103)),
        Handmade("all-delay-offset", brokers, "slave", "code 45", plain(45, 104)),
        Handmade("system-topics", brokers, "admin", "code 305", plain(305, 105)),
        Handmade("system-topics-namesrv", "namesrv", "admin", "code 304", plain(304, 106)),
        Handmade("topics-by-cluster", "namesrv", "admin", "code 224", plain(224, 107, {"cluster": "DefaultCluster"})),
        Handmade("kv-list-missing", "namesrv", "admin", "code 219", plain(219, 108, {"namespace": "missing"})),
        Handmade("consume-time-span", brokers, "admin", "code 303", plain(303, 109, spread)),
        Handmade("unknown-code", brokers, "odd", "code 9999", plain(9999, 110)),
        Handmade("pull-wrong-queue", brokers, "odd", "queue 99", plain(11, 111, wrong_queue)),
        Handmade("pull-no-topic", brokers, "odd", "an unknown topic", plain(11, 112, no_topic)),
        Handmade("send-forbidden-topic", brokers, "odd", "a system topic", plain(310, 113, forbidden, b"x")),
        Handmade("send-bad-name", brokers, "odd", "a space in the topic", plain(310, 114, bad_name, b"x")),
        Handmade("view-missing", brokers, "odd", "no message there", plain(33, 115, {"offset": "99999999"})),
        Handmade("stats-missing", brokers, "odd", "an unknown topic", plain(202, 116, {"topic": "missing"})),
        Handmade("lock-nothing", brokers, "odd", "a lock of no queue", plain(41, 117, body=b'{"clientId":"x","consumerGroup":"g","mqSet":[]}')),
        Handmade("unregister-missing", brokers, "odd", "a client that never was", plain(35, 118, {"clientID": "never", "producerGroup": "none"})),
    ]  # fmt: skip


def all_frames() -> list[Handmade]:
    """Everything, in the order in which it is to be sent."""
    return [*of_other_clients(), *of_rare_codes()]
