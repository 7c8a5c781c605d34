"""Batches with messages that are stored already, or that occur twice in the batch. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.dedup.guard import Cold, Stored
from cometmq.core.errors import MessageIllegal
from cometmq.message import batch
from cometmq.message import properties as props
from cometmq.message.record import BadRecord

if TYPE_CHECKING:
    from collections.abc import Callable

_UNIQ_KEY: Final = props.UNIQ_KEY.encode()


class Sifted(NamedTuple):
    """The messages of a batch, divided into new and repeated ones.

    ``ids`` are the unique keys of the new messages, whose entries form ``body``. ``places`` has,
    for each message, its stored place, or the index of the new message that it is or repeats.
    ``cold`` are places that must be read before a decision.
    """

    body: bytes
    ids: list[str | None]
    places: list[Stored | int]
    cold: list[Cold]


def sift(body: bytes, first: Callable[[str], Stored | Cold | None]) -> Sifted:
    """Divide a batch body; ``first`` returns the place where an id is stored already.

    A message is identified by the unique key among its own properties, never by a property of the
    whole batch. Raise MessageIllegal if the body is no valid batch.
    """
    try:
        spans = batch.walk(body)
    except BadRecord as error:
        raise MessageIllegal(f"batch body: {error}") from None
    if not spans:
        raise MessageIllegal("the batch contains no messages")
    new: list[bytes] = []
    ids: list[str | None] = []
    inside: dict[str, int] = {}
    places: list[Stored | int] = []
    cold: list[Cold] = []
    start = 0
    for _, _, body_end, stop in spans:
        raw = props.find(body[body_end + 2 : stop], _UNIQ_KEY)
        unique = None if raw is None else str(raw, "utf-8", "replace")
        if unique is not None:
            known = inside.get(unique)
            found = first(unique) if known is None else known
            if isinstance(found, Cold):
                cold.append(found)
            elif found is not None:
                places.append(found)
                start = stop
                continue
            inside[unique] = len(ids)
        places.append(len(ids))
        ids.append(unique)
        new.append(body[start:stop])
        start = stop
    return Sifted(body if len(new) == len(spans) else b"".join(new), ids, places, cold)
