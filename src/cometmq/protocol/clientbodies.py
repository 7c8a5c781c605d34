"""Tolerant parser of client bodies: heartbeats, lock requests, results of direct consumption.

Bodies of Java clients need no conversion. The C++ client writes an enumeration by its number, the
Go client does so in a result. The .NET client capitalizes names. Others write null or an empty text
for a missing value. Java accepts all of these.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    Body,
    ConsumerData,
    DirectResult,
    Heartbeat,
    ProducerData,
    QueueKey,
    QueueLockRequest,
    SubscriptionData,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, parse_json

B = TypeVar("B", bound=Body)

#: Deeper than the nesting of any of these bodies.
_MAX_DEPTH: Final = 16

#: Names of enumerations, in the order in which Java, C++ and Go declare them.
ENUMERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
    "consumeResult": (
        "CR_SUCCESS",
        "CR_LATER",
        "CR_ROLLBACK",
        "CR_COMMIT",
        "CR_THROW_EXCEPTION",
        "CR_RETURN_NULL",
    ),
}
#: Structs that each body consists of.
_PARTS: Final[dict[type[Body], tuple[type[Body], ...]]] = {
    Heartbeat: (Heartbeat, ConsumerData, ProducerData, SubscriptionData),
    QueueLockRequest: (QueueLockRequest, QueueKey),
    DirectResult: (DirectResult,),
}
#: Fields in which an empty text is a value; in other fields it means that there is none.
_TEXTS: Final = {
    "clientID",
    "clientId",
    "groupName",
    "consumerGroup",
    "topic",
    "subString",
    "remark",
}


def parse_client_body(data: bytes, cls: type[B]) -> B:
    """Parse a body in any of the clients' forms. Raises BadRequest (code 1)."""
    try:
        return msgspec.json.decode(data, type=cls, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        plain = parse_json(data, dict[str, Any], dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)
    try:
        return msgspec.convert(_tidied(plain, _NAMES[cls], _MAX_DEPTH), cls, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(ResponseCode.SYSTEM_ERROR, f"JSON body: {error}") from None


def _tidied(value: Any, names: dict[str, str], depth: int) -> Any:
    """Return ``value`` with standard field names, without null values and empty texts.

    No body nests deeper than ``depth``; deeper parts are dropped.
    """
    if depth == 0 and isinstance(value, (list, dict)):
        return None
    if isinstance(value, list):
        return [_tidied(item, names, depth - 1) for item in value if item is not None]
    if not isinstance(value, dict):
        return value
    tidy: dict[str, Any] = {}
    written: str
    for written, item in value.items():
        name = names.get(_folded(written), written)
        if item is not None and (item != "" or name in _TEXTS):
            known = name in ENUMERATIONS
            tidy[name] = _enumerated(name, item) if known else _tidied(item, names, depth - 1)
    return tidy


def _enumerated(name: str, value: Any) -> Any:
    """Return the name of an enumeration's number; other values are unchanged and rejected later."""
    values = ENUMERATIONS[name]
    return values[value] if type(value) is int and 0 <= value < len(values) else value


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


_NAMES: Final[dict[type[Body], dict[str, str]]] = {
    body: {
        _folded(info.encode_name): info.encode_name
        for part in parts
        for info in structs.fields(part)
    }
    for body, parts in _PARTS.items()
}
