"""A row of the outbox, what it is as a message, and what a relay takes and settles at a time.

The columns that applications write, by :meth:`add` or by any SQL:

    topic      order_key (null: no order)      headers (JSON: tag, keys, properties, ...)      body

The table gives ``id`` and ``created_ms``; ``published_ms``, ``sent_as`` and ``refused`` are the
relays'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from cometmq.core.errors import CometError, MessageIllegal
from cometmq.message.ids import lasting_key
from cometmq.message.model import Message

_PLAIN: Final = Message("", b"")
_HEADERS: Final = tuple(
    name for name in Message.__struct_fields__ if name not in {"topic", "body", "message_id"}
)


class OutboxBusy(CometError):
    """Another relay works on the outbox."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row that waits; ``headers`` is JSON."""

    id: int
    topic: str
    order_key: str | None
    headers: str
    body: bytes
    created_ms: int

    @property
    def message_id(self) -> str:
        """The same however often the row is sent, and no other row's."""
        return lasting_key(self.id, self.created_ms, crc32(self.body))

    def message(self) -> Message:
        """The message to send. Raises MessageIllegal when the headers cannot be one's."""
        try:
            headers: dict[str, Any] = msgspec.json.decode(self.headers, type=dict[str, Any])
            if unknown := headers.keys() - set(_HEADERS):
                raise MessageIllegal(f"headers {sorted(unknown)} are none of {list(_HEADERS)}")
            fields = {
                **headers,
                "topic": self.topic,
                "body": self.body,
                "message_id": self.message_id,
            }
            return msgspec.convert(fields, Message, builtin_types=(bytes,))
        except msgspec.MsgspecError as error:
            raise MessageIllegal(f"bad headers: {error}") from None


def headers_of(message: Message) -> str:
    """What a row keeps of a message beside its topic and its body."""
    return msgspec.json.encode(
        {
            name: value
            for name in _HEADERS
            if (value := getattr(message, name)) != getattr(_PLAIN, name)
        }
    ).decode()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a relay takes at a time: at most ``rows``, of ``page_bytes`` and one row more; none of
    the topics in ``resting``. Bodies over ``largest_bytes`` are not read. ``hold_keys`` leaves out
    what stands behind a refused row of its key."""

    rows: int
    page_bytes: int
    largest_bytes: int
    resting: Sequence[str] = ()
    hold_keys: bool = True


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their ids, and why others cannot be sent, by id."""

    rows: Sequence[Row]
    refused: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a page: ids of stored messages, each with the attempt that sent it as a half
    message (else empty), and reasons of refused ones, by id.

    ``keep_ms`` is how long published rows stay; ``now_ms`` is wall time.
    """

    published: Mapping[int, str]
    refused: Mapping[int, str]
    now_ms: int
    keep_ms: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that cannot be sent, and why."""

    id: int
    topic: str
    order_key: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """How many rows wait, since when the oldest of them (wall ms, None without any), and how many
    are refused."""

    waiting: int
    oldest_ms: int | None
    refused: int


class Source(Protocol):
    """A relay's hold on one outbox, for one thread; every call blocks, and raises the outbox's
    ``errors``. ``take`` begins a page, ``settle`` or ``give_up`` ends it."""

    def take(self, wanted: Wanted) -> Page | None:
        """The oldest rows that may be sent, None while another relay has the outbox."""
        ...

    def settle(self, settled: Settled) -> None:
        """Note in one transaction what became of the page."""
        ...

    def give_up(self) -> None:
        """Leave the page as it was."""
        ...

    def sent_as(self, row_id: int) -> str | None:
        """The attempt under which a row was published; None for a row that is not, or is gone."""
        ...

    def close(self) -> None:
        """Let the outbox go."""
        ...


class Sources(Protocol):
    """What a relay needs of an outbox."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What its database raises."""
        ...

    @property
    def name(self) -> str:
        """What logs call it."""
        ...

    def open(self) -> Source:
        """A relay's hold on it, for one thread."""
        ...


def fitting(
    waiting: Iterable[tuple[int, str, str | None, int]], wanted: Wanted
) -> tuple[list[int], dict[int, str]]:
    """Which rows to read of those that wait, given as (id, topic, order key, size of the body):
    their ids, and why others cannot be sent. Pure."""
    ids: list[int] = []
    refused: dict[int, str] = {}
    held: set[tuple[str, str]] = set()
    taken_bytes = 0
    for row_id, topic, order_key, size in waiting:
        if order_key is not None and (topic, order_key) in held:
            continue
        if size > wanted.largest_bytes:
            refused[row_id] = f"the body has {size} bytes; the limit is {wanted.largest_bytes}"
            if wanted.hold_keys and order_key is not None:
                held.add((topic, order_key))
            continue
        if taken_bytes > wanted.page_bytes:
            break
        ids.append(row_id)
        taken_bytes += size
    return ids, refused
