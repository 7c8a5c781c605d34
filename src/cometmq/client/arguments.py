"""Checks of argument types. Keys may be integers, which are converted to texts. No I/O.

An error names the argument, the type that it needs, and how to write it. The hot path of a plain
send compares types itself (producer.py), and calls these functions only for other types. Elsewhere
they are called for every value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, NoReturn, cast

from cometmq.core.errors import MessageIllegal, WrongArgument
from cometmq.message.model import Message, MessageQueue

#: A key, or the order key of a message: an integer stands for its decimal text.
Key = str | int


def refuse(argument: str, wanted: str, value: object, way_out: str = "") -> NoReturn:
    """Raise WrongArgument: ``argument`` must be ``wanted``, not of the type of ``value``.

    ``way_out`` says how to write the argument.
    """
    hint = f": {way_out}" if way_out else ""
    raise WrongArgument(argument, f"must be {wanted}, not {type(value).__name__}{hint}")


def check_text(argument: str, value: object) -> None:
    """Raise WrongArgument for anything but a text."""
    if not isinstance(value, str):
        way_out = "decode it" if isinstance(value, bytes | bytearray) else ""
        refuse(argument, "str", value, way_out)


def check_number(argument: str, value: object) -> None:
    """Raise WrongArgument for anything but an integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(argument, "int", value)


def checked_body(value: object) -> bytes:
    """Return the body of a message. Raises WrongArgument if it does not consist of bytes.

    A bytearray or a memoryview of bytes is returned unchanged, and copied when the message is
    packed.
    """
    if isinstance(value, memoryview):
        if value.nbytes != len(value) or not value.c_contiguous:
            refuse("body", "bytes", value, "this one is not of plain bytes; pass bytes(body)")
    elif not isinstance(value, bytes | bytearray):
        if value is None:
            raise WrongArgument("body", "is missing: pass b'' for an empty one")
        how = "encode it" if isinstance(value, str) else "encode it, for example as JSON"
        refuse("body", "bytes", value, how)
    return cast("bytes", value)


def check_topic_type(value: object) -> None:
    """Raise WrongArgument, which asks for a text or a Message, if a topic is not a text."""
    if not isinstance(value, str):
        refuse("topic", "str or Message", value)


def key_text(argument: str, value: object) -> str:
    """Return a key as text. Raises WrongArgument for anything but a text or an integer."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(argument, "str or int", value, "write it as text")
    return str(value)


def key_texts(keys: object) -> tuple[str, ...]:
    """Return one key or a sequence of keys as texts. Raises WrongArgument for other types."""
    if type(keys) is list or type(keys) is tuple:
        for each in keys:
            if type(each) is not str:
                break
        else:
            return tuple(keys)
    if isinstance(keys, str | int):
        return (key_text("keys", keys),)
    if not isinstance(keys, Iterable) or isinstance(keys, bytes | Mapping):
        refuse("keys", "a sequence of str or int", keys)
    return tuple([key_text(f"keys[{at}]", each) for at, each in enumerate(keys)])


def check_keys(keys: object) -> None:
    """Raise WrongArgument unless the keys of a message are a list or tuple of texts."""
    if type(keys) is not tuple and not isinstance(keys, list | tuple):
        refuse("keys", "a tuple of str", keys, "write keys=(key,) for one key")
    for each in keys:
        if not isinstance(each, str):
            way_out = "use str(key)" if isinstance(each, int) else "write it as text"
            refuse(f"keys[{keys.index(each)}]", "str", each, way_out)


def check_properties(properties: object) -> None:
    """Raise WrongArgument for properties that are not a mapping of texts to texts."""
    if type(properties) is not dict and not isinstance(properties, Mapping):
        refuse("properties", "a mapping of str to str", properties)
    for name, value in properties.items():
        if not isinstance(name, str):
            refuse(f"the property name {name!r}", "str", name)
        if not isinstance(value, str):
            refuse(f"properties[{name!r}]", "str", value, "write it as text")


def order_text(order_key: object) -> str | None:
    """Return an order key as text. Raises WrongArgument for anything but text, integer or None."""
    return None if order_key is None else key_text("order_key", order_key)


def check_queue(queue: object) -> None:
    """Raise WrongArgument for anything but a queue, a function that picks one, or None."""
    if queue is not None and not isinstance(queue, MessageQueue) and not callable(queue):
        refuse("queue", "a MessageQueue or a function that picks one", queue)


def check_timeout(timeout_ms: object) -> None:
    """Raise WrongArgument for anything but a finite number."""
    if not isinstance(timeout_ms, int | float) or isinstance(timeout_ms, bool):
        refuse("timeout_ms", "a number of milliseconds", timeout_ms)
    if not isfinite(timeout_ms):
        raise WrongArgument("timeout_ms", f"must be a finite number, not {timeout_ms}")


def check_messages(messages: object) -> list[Message]:
    """Return messages as a list. Raises WrongArgument if they are not messages."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes):
        refuse("messages", "a sequence of Message", messages)
    given = list(messages)
    for at, each in enumerate(given):
        if not isinstance(each, Message):
            refuse(f"messages[{at}]", "Message", each, "write Message(topic, body)")
    return given


def delay_of(delay_s: object) -> int:
    """Return a delay in milliseconds. Raises WrongArgument for anything but a number."""
    if not isinstance(delay_s, int | float) or isinstance(delay_s, bool):
        refuse("delay_s", "a number of seconds", delay_s)
    return round(delay_s * 1_000)


def check_moment(argument: str, value: object) -> None:
    """Raise WrongArgument for anything but a datetime."""
    if not isinstance(value, datetime):
        refuse(argument, "a datetime with a time zone", value)


def epoch_ms(deliver_at: datetime | None) -> int:
    """Return a delivery time in milliseconds since the epoch; 0 for None.

    Raises WrongArgument for anything but a datetime, MessageIllegal for one without a time zone.
    """
    if deliver_at is None:
        return 0
    check_moment("deliver_at", deliver_at)
    if deliver_at.tzinfo is None:
        raise MessageIllegal(f"deliver_at {deliver_at} has no time zone: give a time zone")
    return round(deliver_at.timestamp() * 1_000)


def check_function(argument: str, value: Any) -> None:
    """Raise WrongArgument for a value that cannot be called."""
    if not callable(value):
        refuse(argument, "a function", value)
