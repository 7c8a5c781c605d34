"""What a broker takes out of the property text of a send before it stores it. Pure."""

from __future__ import annotations

from typing import Final

from cometmq.message import properties as props

_WAIT_TRUE: Final = f"{props.WAIT}{props.NAME_VALUE_SEPARATOR}true"
_SEPARATOR: Final = props.PROPERTY_SEPARATOR
_ID_MARK: Final = props.UNIQ_KEY + props.NAME_VALUE_SEPARATOR
_WAIT_LAST: Final = _SEPARATOR + _WAIT_TRUE
_WAIT_BETWEEN: Final = _WAIT_LAST + _SEPARATOR


def without_wait(text: str) -> str:
    """The property text without WAIT=true, which says nothing once the message is stored."""
    if text.endswith(_WAIT_LAST):
        return text[: -len(_WAIT_LAST)]  # as our client and most others write it
    # As Java writes it: replaced at once, in half the time that splitting takes.
    text = text.replace(_WAIT_BETWEEN, _SEPARATOR)
    if _WAIT_TRUE not in text:
        return text.rstrip(_SEPARATOR)
    return _SEPARATOR.join([pair for pair in text.split(_SEPARATOR) if pair and pair != _WAIT_TRUE])


def may_wait(text: str) -> bool:
    """Whether a send waits for its sync by a property text as it came: the last WAIT counts."""
    return props.decode_text(text).get(props.WAIT) != "false"


def has_own_ids(body: bytes) -> bool:
    """Whether the messages of a batch have unique keys; the first tells for all."""
    return _ID_MARK.encode() in body[: int.from_bytes(body[:4], "big")]


def without_id(text: str) -> str:
    """The property text without a unique key: RocketMQ 5's client gives one to the batch too, which
    would take the place of each message's own."""
    return props.without(text, props.UNIQ_KEY)
