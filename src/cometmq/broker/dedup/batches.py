"""Batches of which some messages are stored already, or stand in them twice. Pure."""

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
    """The messages of a batch. ``ids`` are those of the new ones, whose entries are ``body``.

    ``places`` says of each message where it is stored already, or, as a number, which of the new
    ones it is or repeats. ``cold`` are places that have to be read before anything can be said.
    """

    body: bytes
    ids: list[str | None]
    places: list[Stored | int]
    cold: list[Cold]


def sift(body: bytes, first: Callable[[str], Stored | Cold | None]) -> Sifted:
    """Part a batch body; ``first`` says of an id where it is stored already.

    A message is known by the unique key among its own properties, never by one that its batch
    gives to all. Raises MessageIllegal for a body that is none.
    """
    try:
        spans = batch.walk(body)
    except BadRecord as error:
        raise MessageIllegal(f"batch body: {error}") from None
    if not spans:
        raise MessageIllegal("the batch holds no message")
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
