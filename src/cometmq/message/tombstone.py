"""Tombstones: records whose content is erased, of the same size in the same place.

A tombstone is a plain message for every broker and client, so if queues and index are rebuilt from
the log, they have the same offsets as before:

    head          as before, without compression and without the user's flag
    body          zeros, as many as the size of the record requires
    topic         as before
    properties    those in KEPT; KEYS with one FILLER_KEY for each key that is erased, so that the
                  index has as many entries as before; ERASED, if there is room for it

It has no tag, so it does not match subscriptions to tags.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final
from zlib import crc32

from cometmq.message import properties as props
from cometmq.message.record import (
    COMPRESSED,
    COMPRESSION_MASK,
    CRC_MASK,
    bad_record,
    head_of,
    iter_spans,
)

ERASED: Final = "COMETMQ_ERASED"
"""Property that says why a message has no content. Its values are REDACTED and COMPACTED."""
REDACTED: Final = "redacted"
COMPACTED: Final = "compacted"
FILLER_KEY: Final = "~"
"""Replaces an erased key."""

#: Reserved names whose values the sender chooses. Neither brokers nor clients depend on them.
_OF_SENDER: Final = frozenset(
    {
        props.KEYS, props.TAGS, props.SHARDING_KEY, props.BUYER_ID, props.CORRELATION_ID,
        props.REPLY_TO_CLIENT,
    }
)  # fmt: skip
KEPT: Final = props.RESERVED - _OF_SENDER
"""Names of the properties that a tombstone keeps."""


def keys_in(text: str) -> list[str]:
    """Return the keys in a text with one key a line."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def is_key(text: str) -> bool:
    """Return whether messages with this key can be erased: it is one word and not FILLER_KEY."""
    return text.split() == [text] and text != FILLER_KEY


def entomb(raw: bytes, erased: Set[str], cause: str) -> bytes:
    """Return the tombstone of a record, of the same size.

    ``erased`` are the keys to erase: a property in KEPT is left out if its value is one of them.
    ``cause`` is the value of ERASED. Raises BadRecord if ``raw`` is not exactly one record.
    """
    span = next(iter_spans(raw, check_crc=False), None)
    if span is None or span[1][0] != len(raw):
        raise bad_record(raw, 0, len(raw))
    _, head, body_at, body_end, _, topic_end = span
    (
        size, magic, _, queue_id, _, queue_offset, physical_offset, sys_flag, born_ms, born_host,
        store_ms, store_host, reconsume_times, prepared_offset, _,
    ) = head  # fmt: skip
    held = raw[topic_end + 2 :]
    room = body_end - body_at + len(held)
    text = _kept(held, erased)
    marked = props.joined(text, f"{ERASED}\x01{cause}".encode())
    if len(marked) <= min(room, props.MAX_SIZE_BYTES):
        text = marked
    body = bytes(room - len(text))
    sys_flag &= ~(COMPRESSED | COMPRESSION_MASK)
    packed = head_of(sys_flag).pack(
        size, magic, crc32(body) & CRC_MASK, queue_id, 0, queue_offset, physical_offset, sys_flag,
        born_ms, born_host, store_ms, store_host, reconsume_times, prepared_offset, len(body),
    )  # fmt: skip
    return b"".join((packed, body, raw[body_end:topic_end], len(text).to_bytes(2, "big"), text))


def _kept(held: bytes, erased: Set[str]) -> bytes:
    """Return the properties to keep, with a FILLER_KEY for each index key that is erased."""
    kept: dict[str, bytes] = {}
    for raw_name, start, stop in props.iter_pairs(held):
        name = str(raw_name, "utf-8", "replace")
        kept.pop(name, None)
        if name in KEPT and str(held[start:stop], "utf-8", "replace") not in erased:
            kept[name] = raw_name + b"\x01" + held[start:stop]
    fillers = len(props.index_keys(props.decode(held))) - (props.UNIQ_KEY in kept)
    if fillers:
        keys = " ".join([FILLER_KEY] * fillers)
        kept[props.KEYS] = f"{props.KEYS}\x01{keys}".encode()
    return b"\x02".join(kept.values())


def is_tombstone(held: bytes) -> bool:
    """Return whether a record with these properties is a tombstone."""
    found = props.decode(held)
    return ERASED in found or set(props.split_keys(found.get(props.KEYS, ""))) == {FILLER_KEY}
