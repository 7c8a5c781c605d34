"""Parsing of message bodies as kombu's messages. Pure.

Any program may send to a topic, so a body may be anything. Without these checks such a message
would end the worker that received it, be delivered again, and end the next worker.
"""

from __future__ import annotations

from typing import Any

from kombu.utils.json import loads


def payload_of(body: bytes) -> dict[str, Any]:
    """Return the kombu message in a body, with properties, headers and delivery info checked.

    Raises ValueError for a body that is no kombu message, and the errors of kombu's decoder.
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
    """Return the time from its send until a message expires; 0 for never.

    Raises ValueError or TypeError if the property is not a number.
    """
    return int(payload["properties"].get("expiration") or 0)


def may_be_key(task_id: str) -> bool:
    """Return whether a task id can be a key of its message, which may not contain blanks."""
    return bool(task_id) and task_id.isprintable() and " " not in task_id
