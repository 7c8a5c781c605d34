"""Property text of a send: removes the properties that are not stored. Pure."""

from __future__ import annotations

from typing import Final

from cometmq.message import properties as props

_WAIT_TRUE: Final = f"{props.WAIT}{props.NAME_VALUE_SEPARATOR}true"
_SEPARATOR: Final = props.PROPERTY_SEPARATOR
_ID_MARK: Final = props.UNIQ_KEY + props.NAME_VALUE_SEPARATOR
_WAIT_LAST: Final = _SEPARATOR + _WAIT_TRUE
_WAIT_BETWEEN: Final = _WAIT_LAST + _SEPARATOR


def without_wait(text: str) -> str:
    """Return the property text without WAIT=true, which has no meaning once the message is
    stored."""
    if text.endswith(_WAIT_LAST):
        return text[: -len(_WAIT_LAST)]  # as CometMQ's client and most others write it
    # As Java's client writes it: replacing takes half the time of splitting.
    text = text.replace(_WAIT_BETWEEN, _SEPARATOR)
    if _WAIT_TRUE not in text:
        return text.rstrip(_SEPARATOR)
    return _SEPARATOR.join([pair for pair in text.split(_SEPARATOR) if pair and pair != _WAIT_TRUE])


def may_wait(text: str) -> bool:
    """Return whether the received property text lets a send wait for its sync; the last WAIT
    counts."""
    return props.decode_text(text).get(props.WAIT) != "false"


def has_own_ids(body: bytes) -> bool:
    """Return whether the messages of a batch have unique keys; only the first is examined."""
    return _ID_MARK.encode() in body[: int.from_bytes(body[:4], "big")]


def without_id(text: str) -> str:
    """Return the property text without a unique key.

    RocketMQ 5's client sets one on the batch too, which would replace each message's own.
    """
    return props.without(text, props.UNIQ_KEY)
