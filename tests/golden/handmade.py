"""Frames written by hand as other clients write them, and the codes that mqadmin does not ask for.

`record.py` sends them to the real broker and name server and keeps the answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

TOPIC = "golden"
GROUP = "golden-group"
#: What the C++ client adds to every request when it has no credentials.
CPP_EMPTY = {"Signature": "", "AccessKey": "", "OnsChannel": ""}
PROPERTIES = "TAGS\x01a\x02KEYS\x01k1\x02UNIQ_KEY\x01{}\x02WAIT\x01true"
Value = str | int | bool
Fields = Mapping[str, Value]


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


def cpp(code: int, opaque: int, ext: Fields, body: bytes = b"", flag: int = 0) -> bytes:
    """As rocketmq-client-cpp 2.x does: keys sorted, an empty remark, a line feed at the end."""
    head: dict[str, object] = {
        "code": code,
        "extFields": {**ext, **CPP_EMPTY},
        "flag": flag,
        "language": "CPP",
    }
    head |= {"opaque": opaque, "remark": "", "version": 333}
    return framed(json.dumps(head, sort_keys=True, separators=(",", ":")).encode() + b"\n", body)


def ali_ons(code: int, opaque: int, ext: Fields, body: bytes = b"") -> bytes:
    """As ali-ons (Node) does: numbers and booleans stay what they are, version 121."""
    head: dict[str, object] = {
        "code": code,
        "language": "JAVA",
        "version": 121,
        "opaque": opaque,
        "flag": 0,
    }
    head["extFields"] = ext
    return framed(json.dumps(head, separators=(",", ":")).encode(), body)


def plain(code: int, opaque: int, ext: Fields | None = None, body: bytes = b"") -> bytes:
    """As the Java client does."""
    head: dict[str, object] = {"code": code, "extFields": ext or {}, "flag": 0, "language": "JAVA"}
    head |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 407}
    return framed(json.dumps(head, separators=(",", ":")).encode(), body)


def go(code: int, opaque: int, ext: Fields, body: bytes = b"") -> bytes:
    """As rocketmq-client-go does: its language, version 317, an empty remark."""
    head: dict[str, object] = {
        "code": code,
        "language": "GO",
        "version": 317,
        "opaque": opaque,
        "flag": 0,
    }
    head |= {"remark": "", "extFields": ext}
    return framed(json.dumps(head, separators=(",", ":")).encode(), body)


def dotnet(code: int, opaque: int, ext: Fields, body: bytes = b"") -> bytes:
    """As NewLife.RocketMQ (.NET) does: it calls itself CPP, version 373, and leaves out what is
    null."""
    head: dict[str, object] = {"code": code, "extFields": ext, "flag": 0, "language": "CPP"}
    head |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 373}
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
    subscription: dict[str, object] = {
        "classFilterMode": False,
        "codeSet": ["97"],
        "subString": "a",
    }
    subscription |= {"subVersion": "1700000000000", "tagsSet": ["a"], "topic": TOPIC}
    consumer: dict[str, object] = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
    }
    consumer |= {"groupName": GROUP, "messageModel": "CLUSTERING", "unitMode": False}
    consumer["subscriptionDataSet"] = [subscription]
    producers = [{"groupName": "producers"}]
    data = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": producers}
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


def made(who: str, server: str, name: str, what: str, frame: bytes) -> Handmade:
    """A frame that is answered."""
    return Handmade(name, server, who, what, frame)


def of_cpp() -> list[Handmade]:
    """The C++ client."""
    queue: Fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
    commit = cpp(15, 8, {**queue, "commitOffset": "1"}, flag=2)
    first, second = short_send(1) | {"m": "1"}, short_send(2) | {"m": "0"}
    beat = cpp(34, 4, {}, heartbeat("127.0.0.1@1#cpp"))
    members = cpp(38, 7, {"consumerGroup": GROUP})
    return [
        made("cpp", "broker", "send", 'a single send with "m":"1"', cpp(310, 1, first, b"one")),
        made("cpp", "broker", "send-m0", 'the same with "m":"0"', cpp(310, 2, second, b"two")),
        made("cpp", "namesrv", "route", "a route", cpp(105, 3, {"topic": TOPIC})),
        made("cpp", "broker", "heartbeat", "numbers as text in codeSet", beat),
        made("cpp", "broker", "pull", "a pull without expressionType", cpp(11, 5, pull())),
        made("cpp", "broker", "query-offset", "an offset never committed", cpp(14, 6, queue)),
        made("cpp", "broker", "consumer-list", "members of a group", members),
        Handmade("update-offset", "broker", "cpp", "a one-way commit", commit, answered=False),
    ]


def of_ali_ons() -> list[Handmade]:
    """ali-ons: numbers and booleans in extFields."""
    send = ali_ons(310, 11, numbers(short_send(3)) | {"k": False}, b"three")
    offset = numbers({"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"})
    limit = ali_ons(30, 14, numbers({"topic": TOPIC, "queueId": "0"}))
    return [
        made("ali-ons", "broker", "send", "numbers and a boolean in extFields", send),
        made("ali-ons", "broker", "pull", "numbers", ali_ons(11, 12, numbers(pull()))),
        made("ali-ons", "broker", "query-offset", "a number", ali_ons(14, 13, offset)),
        made("ali-ons", "broker", "max-offset", "a number", limit),
    ]


def of_go() -> list[Handmade]:
    """The Go client: code 10 under long names."""
    send: Fields = {
        **{"producerGroup": "producers", "topic": TOPIC, "defaultTopic": "TBW102"},
        **{"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0"},
        **{"bornTimestamp": "1700000000000", "flag": "0", "reconsumeTimes": "0"},
        **{"properties": PROPERTIES.format(unique_key(4)), "unitMode": "false"},
        **{"batch": "false", "maxReconsumeTimes": "0"},
    }
    return [
        made("go", "broker", "send", "code 10, long names", go(10, 21, send, b"four")),
        made("go", "namesrv", "route", "a route", go(105, 22, {"topic": TOPIC})),
    ]


def of_rare_codes() -> list[Handmade]:
    """Codes that slaves and dashboards ask for."""
    cluster, space = {"cluster": "DefaultCluster"}, {"namespace": "missing"}
    spread = {"topic": TOPIC, "group": GROUP}
    return [
        made("slave", "broker", "all-topic-config", "code 21", plain(21, 101)),
        made("slave", "broker", "all-group-config", "code 201", plain(201, 102)),
        made("slave", "broker", "all-consumer-offset", "code 43", plain(43, 103)),
        made("slave", "broker", "all-delay-offset", "code 45", plain(45, 104)),
        made("admin", "broker", "system-topics", "code 305", plain(305, 105)),
        made("admin", "namesrv", "system-topics-namesrv", "code 304", plain(304, 106)),
        made("admin", "namesrv", "topics-by-cluster", "code 224", plain(224, 107, cluster)),
        made("admin", "namesrv", "kv-list-missing", "code 219", plain(219, 108, space)),
        made("admin", "broker", "consume-time-span", "code 303", plain(303, 109, spread)),
    ]


def of_mistakes() -> list[Handmade]:
    """Requests that are wrong, and what hardly is one."""
    queue, topic = pull() | {"queueId": "99"}, pull() | {"topic": "missing"}
    system = plain(310, 113, short_send(9) | {"b": "SCHEDULE_TOPIC_XXXX"}, b"x")
    spaced = plain(310, 114, short_send(9) | {"b": "bad name"}, b"x")
    nobody = plain(35, 118, {"clientID": "never", "producerGroup": "none"})
    no_queue = plain(41, 117, body=b'{"clientId":"x","consumerGroup":"g","mqSet":[]}')
    nowhere = plain(33, 115, {"offset": "99999999"})
    return [
        made("odd", "broker", "unknown-code", "code 9999", plain(9999, 110)),
        made("odd", "broker", "pull-wrong-queue", "queue 99", plain(11, 111, queue)),
        made("odd", "broker", "pull-no-topic", "an unknown topic", plain(11, 112, topic)),
        made("odd", "broker", "send-forbidden-topic", "a system topic", system),
        made("odd", "broker", "send-bad-name", "a space in the topic", spaced),
        made("odd", "broker", "view-missing", "no message there", nowhere),
        made("odd", "broker", "stats-missing", "a topic", plain(202, 116, {"topic": "missing"})),
        made("odd", "broker", "lock-nothing", "a lock of no queue", no_queue),
        made("odd", "broker", "unregister-missing", "a client that never was", nobody),
    ]


def all_frames() -> list[Handmade]:
    """Everything, in the order in which it is to be sent."""
    return [*of_cpp(), *of_ali_ons(), *of_go(), *of_rare_codes(), *of_mistakes()]
