"""Splits messages into as few batches as the limits allow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.client.limits import goes_alone

if TYPE_CHECKING:
    from cometmq.message.model import Message

#: Upper bound in bytes of an entry's length fields and of the properties that every message gets.
_OVERHEAD_BYTES: Final = 22 + 128


def plan_batches(
    messages: Sequence[Message],
    order_key: Callable[[Message], str | None],
    max_batch_bytes: int,
) -> list[tuple[list[int], str | None]]:
    """Group messages into batches; return their positions in ``messages`` with their order key.

    The messages of one batch share topic, ``wait_store``, birth time and order key, and the batch
    has at most ``max_batch_bytes``. A message that no batch may hold is sent alone. Messages of one
    topic and key keep their order.
    """
    plan: list[tuple[list[int], str | None]] = []
    open_batches: dict[tuple[str, str | None], tuple[list[int], int]] = {}
    for at, message in enumerate(messages):
        key = order_key(message)
        group = (message.topic, key)
        size = _estimate_bytes(message)
        alone = goes_alone(message)
        positions, filled = open_batches.get(group, ([], 0))
        fits = positions and _alike(messages[positions[0]], message)
        if alone or not fits or filled + size > max_batch_bytes:
            positions, filled = [], 0
            plan.append((positions, key))
        positions.append(at)
        # A message sent alone ends the open batch of its group: later messages may not precede it.
        if alone:
            open_batches.pop(group, None)
        else:
            open_batches[group] = (positions, filled + size)
    return plan


def _alike(first: Message, message: Message) -> bool:
    """Compare the fields that a batch stores once for all its messages."""
    return first.wait_store == message.wait_store and first.born_ms == message.born_ms


def _estimate_bytes(message: Message) -> int:
    """Return an upper bound of an entry's size in bytes, without encoding its properties."""
    size = _OVERHEAD_BYTES + len(message.body) + _text_bytes(message.tag)
    size += _text_bytes(message.message_id)
    for key in message.keys:
        size += _text_bytes(key) + 1
    for name, value in message.properties.items():
        size += _text_bytes(name) + _text_bytes(value) + 2
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
