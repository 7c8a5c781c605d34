"""Parsing of message bodies as kombu's messages. Pure functions.

Any program may send to a topic. A message that is not kombu's must not end the worker that gets it,
and after that the next worker, to which it is delivered again.
"""

from __future__ import annotations

from typing import Any

from kombu.utils.json import loads


def payload_of(body: bytes) -> dict[str, Any]:
    """Return the message that a body holds, with the parts that the transport reads.

    Raises ValueError for a body without them, and what kombu's decoder raises.
    """
    payload = loads(body.decode())
    if not isinstance(payload, dict) or not isinstance(payload.get("properties"), dict):
        raise ValueError("it is no object with properties")
    properties = payload["properties"]
    for parts, name in ((payload, "headers"), (properties, "delivery_info")):
        if not isinstance(parts.get(name, {}) or {}, dict):
            raise ValueError(f"its {name} are no object")
    expiration_ms(payload)
    return payload


def expiration_ms(payload: dict[str, Any]) -> int:
    """Return the time after its send at which a message expires; 0 for never.

    Raises ValueError or TypeError if that is not a number.
    """
    return int(payload["properties"].get("expiration") or 0)


def may_be_key(task_id: str) -> bool:
    """Return whether a task id can be a key of its message: keys have no blanks."""
    return bool(task_id) and task_id.isprintable() and " " not in task_id
