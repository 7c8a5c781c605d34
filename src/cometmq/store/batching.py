"""Turning the body of a batch send into records, all in one file and with consecutive offsets.

The properties of the batch follow those of each message, so for a name that stands in both the
batch's value counts (upstream: CommitLog.MessageExtBatchEncoder). What does not depend on the place
in the log is prepared first, column by column; :meth:`Batch.pack` adds the rest.
"""

from __future__ import annotations

from itertools import chain, count, repeat
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cometmq.core.errors import MessageIllegal
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.batch import MANY, walk
from cometmq.message.flags import TRANSACTION_MASK
from cometmq.message.record import (
    CRC_MASK,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    BadRecord,
    head_of,
    host_flags,
)
from cometmq.store.uniform import Uniform, recognise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cometmq.store.consumequeue import ConsumeQueue

_FRONT = Struct(">IIIiiqq")
_LENGTH_BYTES = 4
_UNIQUE, _KEYS, _TAGS = (name.encode() for name in (props.UNIQ_KEY, props.KEYS, props.TAGS))
_MARKS = _UNIQUE_MARK, _KEYS_MARK, _TAGS_MARK = (
    _UNIQUE + b"\x01",
    _KEYS + b"\x01",
    _TAGS + b"\x01",
)


class Shared(NamedTuple):
    """What the messages of a batch have in common; hosts packed, times in ms."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    properties: bytes

    def middle(self, store_ms: int) -> bytes:
        """What stands in every record between its physical offset and the length of its body.

        Raises MessageIllegal for a transaction, and for a number that does not fit its field.
        """
        sys_flag, born_ms, born_host, store_host, reconsume_times, _ = self
        if sys_flag & TRANSACTION_MASK:
            raise MessageIllegal("a batch cannot be part of a transaction")
        sys_flag = sys_flag & ~0x30 | host_flags(born_host, store_host)
        try:
            head = head_of(sys_flag).pack(
                0, 0, 0, 0, 0, 0, 0, sys_flag, born_ms, born_host, store_ms, store_host,
                reconsume_times, 0, 0,
            )  # fmt: skip
        except StructError as error:
            raise MessageIllegal(f"a number does not fit its field: {error}") from None
        return head[_FRONT.size : -_LENGTH_BYTES]


class Batch(NamedTuple):
    """Checked messages of a batch, column by column.

    ``bodies`` begin with their length, ``suffix`` follows the ``properties`` of each, ``sizes`` are
    those of the records. ``keys`` are of all messages, ``key_counts`` say how many of each; with
    None each has one.
    """

    flags: Sequence[int]
    crcs: list[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    suffix: bytes
    sizes: list[int]
    codes: list[int]
    keys: list[str]
    key_counts: list[int] | None

    def pack(
        self,
        queue: ConsumeQueue,
        shared: Shared,
        first_offset: int,
        places: Sequence[int],
        now_ms: int,
    ) -> Iterator[bytes]:
        """The records' bytes, in pieces; ``places`` are their physical offsets."""
        fronts = map(
            _FRONT.pack, self.sizes, repeat(MAGIC_V1), self.crcs, repeat(queue.queue_id),
            self.flags, count(first_offset), places,
        )  # fmt: skip
        topic, suffix = queue.topic_tail, self.suffix
        lengths = list(map(len, self.properties))
        tails = {
            length: topic + (length + len(suffix)).to_bytes(2, "big") for length in set(lengths)
        }
        pieces = zip(
            fronts, repeat(shared.middle(now_ms)), self.bodies,
            [tails[length] for length in lengths] if len(tails) > 1 else repeat(tails[lengths[0]]),
            self.properties, repeat(suffix), strict=False,
        )  # fmt: skip
        return chain.from_iterable(pieces)


def prepare(
    raw: bytes, queue: ConsumeQueue, shared: Shared, position: int = 0, limit: int = MANY
) -> tuple[Batch, int]:
    """Take a batch body apart, from ``position`` on and at most ``limit`` messages of it.

    Gives them, and where the next one begins. Raises MessageIllegal for what cannot be stored.
    """
    fixed_bytes = _FRONT.size + len(shared.middle(0)) + len(queue.topic_tail) + 2
    own_counts = not any(mark in shared.properties for mark in _MARKS)
    if own_counts:
        size = int.from_bytes(raw[position : position + 4], "big")
        part = raw[position : position + limit * size]
        uniform = recognise(part)
        if uniform is not None:
            return _uniform_batch(uniform, shared.properties, fixed_bytes), position + len(part)
    flags, crcs, bodies, own, position = _taken_apart(raw, position, limit)
    properties = _joined(own, shared.properties)
    codes, names = _looked_up(own if own_counts else properties)
    sizes = [
        fixed_bytes + len(body) + len(text) for body, text in zip(bodies, properties, strict=True)
    ]
    counts = list(map(len, names))
    keys = list(chain.from_iterable(names))
    batch = Batch(flags, crcs, bodies, properties, b"", sizes, codes, keys, counts)
    return batch, position


def _uniform_batch(uniform: Uniform, more: bytes, fixed_bytes: int) -> Batch:
    flags, crcs, bodies, properties, keys, tag = uniform
    suffix = b"\x02" + more if more else b""
    length = len(properties[0]) + len(suffix)
    _check_length(length)
    rows = len(flags)
    sizes = [fixed_bytes + len(bodies[0]) + length] * rows
    codes = [tag_code(str(tag, "utf-8", "replace"))] * rows
    counts = None if keys else [0] * rows
    return Batch(flags, crcs, bodies, properties, suffix, sizes, codes, keys, counts)


def _taken_apart(
    raw: bytes, position: int, limit: int
) -> tuple[Sequence[int], list[int], Sequence[bytes], Sequence[bytes], int]:
    try:
        spans = walk(raw, position, limit)
    except BadRecord as error:
        raise MessageIllegal(f"batch body: {error}") from None
    if not spans:
        raise MessageIllegal("the batch holds no message")
    flags = [flag for flag, _, _, _ in spans]
    bodies = [raw[at - _LENGTH_BYTES : end] for _, at, end, _ in spans]
    crcs = [crc32(raw[at:end]) & CRC_MASK for _, at, end, _ in spans]
    own = [raw[end + 2 : stop] for _, _, end, stop in spans]
    return flags, crcs, bodies, own, spans[-1][3]


def _joined(own: Sequence[bytes], more: bytes) -> Sequence[bytes]:
    """Each message's properties with those of the batch. Raises MessageIllegal over the limit."""
    separated = b"\x02" + more
    found = (
        [text + (separated if text and text[-1] != 2 else more) for text in own] if more else own
    )
    _check_length(max(map(len, found)))
    return found


def _check_length(longest: int) -> None:
    if longest > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            f"properties of a message with those of its batch are {longest} bytes long, the limit "
            f"is {MAX_PROPERTIES_BYTES}"
        )


def _looked_up(texts: Sequence[bytes]) -> tuple[list[int], list[tuple[str, ...]]]:
    """The tag codes and the index keys of many messages.

    From one message to the next mostly the unique key alone differs, so a message is compared with
    the one before; what is elsewhere between ``head`` and ``tail`` is looked up.
    """
    known: dict[bytes, int] = {}
    codes: list[int] = []
    keys: list[tuple[str, ...]] = []
    head = tail = b""
    start = stop = code = 0
    length = -1
    for text in texts:
        unique = text[start:stop]
        if (
            len(text) == length
            and b"\x02" not in unique
            and text.startswith(head)
            and text.endswith(tail)
        ):
            keys.append((str(unique, "utf-8", "replace"),))
        else:
            names, code = looked_up(text, known)
            keys.append(names)
            start, stop = _span(text, _UNIQUE_MARK)
            length = len(text) if stop > start and _KEYS_MARK not in text else -1
            head, tail = text[:start], text[stop:]
        codes.append(code)
    return codes, keys


def looked_up(properties: bytes, known: dict[bytes, int]) -> tuple[tuple[str, ...], int]:
    """The index keys and the tag code in encoded properties, without decoding the rest.

    ``known`` remembers codes of tags from one message to the next.
    """
    unique = _value(properties, _UNIQUE, _UNIQUE_MARK)
    names = (str(unique, "utf-8", "replace"),) if unique else ()
    if _KEYS_MARK in properties:
        keys = _value(properties, _KEYS, _KEYS_MARK)
        names = (*names, *props.split_keys(str(keys, "utf-8", "replace")))
    tag = _value(properties, _TAGS, _TAGS_MARK)
    if not tag:
        return names, 0
    code = known.get(tag)
    if code is None:
        code = known[tag] = tag_code(str(tag, "utf-8", "replace"))
    return names, code


def _value(properties: bytes, name: bytes, mark: bytes) -> bytes:
    start, stop = _span(properties, mark)
    # Rare: the name ends another one, or its last value is empty.
    return properties[start:stop] or props.find(properties, name) or b""


def _span(properties: bytes, mark: bytes) -> tuple[int, int]:
    """Where the value of the last pair with this name stands; nowhere when that is in doubt."""
    at = properties.rfind(mark)
    if at < 0 or (at and properties[at - 1] != 2):
        return 0, 0
    start = at + len(mark)
    stop = properties.find(b"\x02", start)
    return start, len(properties) if stop < 0 else stop
