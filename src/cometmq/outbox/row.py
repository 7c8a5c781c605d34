"""Rows of the outbox: their messages, and the pages that a relay takes and settles.

    column          set by        content
    topic, body     application   those of the message
    order_key       application   text; null for a message without order
    headers         application   JSON: tag, keys, properties, ...
    id              table         the order of the rows
    created_ms      table         wall time of the insert
    published_ms    relay         wall time at which the row was settled
    sent_as         relay         attempt id of its half message; "" without transactions
    refused         relay         reason why the row cannot be sent

Applications insert rows with :meth:`Outbox.add` or any SQL.
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

Value = str | int | bytes | None
#: A statement and the values of its placeholders.
Statement = tuple[str, tuple[Value, ...]]

#: A message with default headers.
_PLAIN: Final = Message("", b"")
#: Fields of a message that the column ``headers`` holds.
_HEADERS: Final = tuple(
    name for name in Message.__struct_fields__ if name not in {"topic", "body", "message_id"}
)


class OutboxBusy(CometError):
    """Another relay works on the outbox."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """Row to be sent; ``headers`` is JSON."""

    id: int
    topic: str
    order_key: str | None
    headers: str
    body: bytes
    created_ms: int

    @property
    def message_id(self) -> str:
        """Message id: the same for every send of the row, and different from that of other rows."""
        return lasting_key(self.id, self.created_ms, crc32(self.body))

    def message(self) -> Message:
        """Return the message to send. Raises MessageIllegal for columns with invalid values."""
        if self.order_key is not None and type(self.order_key) is not str:
            raise MessageIllegal(f"the order key {self.order_key!r} is no text")
        try:
            headers: dict[str, Any] = msgspec.json.decode(self.headers, type=dict[str, Any])
            if unknown := headers.keys() - set(_HEADERS):
                raise MessageIllegal(
                    f"unknown headers {sorted(unknown)}; allowed are {list(_HEADERS)}"
                )
            fields = {
                **headers,
                "topic": self.topic,
                "body": self.body,
                "message_id": self.message_id,
            }
            return msgspec.convert(fields, Message, builtin_types=(bytes,))
        except msgspec.MsgspecError as error:
            raise MessageIllegal(f"invalid headers: {error}") from None
        except (TypeError, ValueError, OverflowError, OSError) as error:
            raise MessageIllegal(
                f"no message id can be made of created_ms {self.created_ms!r} and the body: {error}"
            ) from None


def headers_of(message: Message) -> str:
    """Return the column ``headers`` for a message: JSON of its fields that are not defaults."""
    return msgspec.json.encode(
        {
            name: value
            for name in _HEADERS
            if (value := getattr(message, name)) != getattr(_PLAIN, name)
        }
    ).decode()


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Limits of a page.

    It has at most ``rows`` rows, whose bodies exceed ``page_bytes`` by at most one body. Rows of
    the topics ``resting`` are left out. Rows with a body over ``largest_bytes`` are refused without
    reading it. ``hold_keys`` leaves out rows after a refused row of their key.
    """

    rows: int
    page_bytes: int
    largest_bytes: int
    resting: Sequence[str] = ()
    hold_keys: bool = True


@dataclass(frozen=True, slots=True)
class Page:
    """Rows to send, in the order of their ids; ``refused`` maps ids of other rows to reasons."""

    rows: Sequence[Row]
    refused: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """Results of a page.

    ``published`` maps ids of rows whose message is stored to the attempt that sent the half message
    (empty without transactions); ``refused`` maps ids to reasons. Published rows are kept for
    ``keep_ms``; ``now_ms`` is wall time.
    """

    published: Mapping[int, str]
    refused: Mapping[int, str]
    now_ms: int
    keep_ms: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Row that cannot be sent, and the reason."""

    id: int
    topic: str
    order_key: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """Numbers of waiting and of refused rows.

    ``oldest_ms`` is the creation time of the oldest waiting row (wall ms), None if there is none.
    """

    waiting: int
    oldest_ms: int | None
    refused: int


class Source(Protocol):
    """Access of one relay to one outbox, for use in one thread.

    Every call blocks and raises the outbox's ``errors``. ``take`` begins a page, ``settle`` or
    ``give_up`` ends it.
    """

    def take(self, wanted: WantedRows) -> Page | None:
        """Return the oldest rows that may be sent; None while another relay has the outbox."""
        ...

    def settle(self, settled: Settled) -> None:
        """Store the results of the page in one transaction."""
        ...

    def give_up(self) -> None:
        """End the page without changes."""
        ...

    def sent_as(self, row_id: int) -> str | None:
        """Return the attempt that published a row; None for a row not published, or deleted."""
        ...

    def close(self) -> None:
        """Release the outbox; another relay can take it once this returns."""
        ...


class Sources(Protocol):
    """Outbox, as seen by a relay."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions that its database raises."""
        ...

    @property
    def name(self) -> str:
        """Name in log messages."""
        ...

    def open(self) -> Source:
        """Open the outbox for a relay, for use in one thread."""
        ...


def fitting(
    waiting: Iterable[tuple[int, str, str | None, int]], wanted: WantedRows
) -> tuple[list[int], dict[int, str]]:
    """Choose the rows of a page; return their ids, and the reasons by id of refused rows.

    ``waiting`` are the waiting rows as (id, topic, order key, bytes of the body), oldest first.
    Pure.
    """
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
