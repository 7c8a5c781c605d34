"""Records appended in one turn of the event loop, and the requests that wait for the outcome.

broker/append/acknowledgement.py appends, commits and reports the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from cometmq.core.errors import CometError
from cometmq.message.ids import encode_offset_id

if TYPE_CHECKING:
    from cometmq.net.peer import Peer
    from cometmq.protocol.frame import Request
    from cometmq.speedups import Half, TransactionBatch, WriteBatch
    from cometmq.store.messagestore import SentRows


class OutgoingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that the broker itself stores, for example a retry or a delayed message that is due.

    ``queue_id`` must exist. The last three fields follow from the properties and are optional; a
    caller that has them saves the work: the hash of the tag, the encoded properties, and the index
    keys.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    born_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    tag_code: int | None = None
    raw_properties: bytes | None = None
    keys: tuple[str, ...] | None = None


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Place of a stored record. ``code`` is SUCCESS, or the code of a timeout or of missing slaves
    that left it less durable than the flush policy asks."""

    code: int
    physical_offset: int
    queue_offset: int
    store_host: bytes

    @property
    def message_id(self) -> str:
        """The message id made of the store's address and the physical offset."""
        return encode_offset_id(self.store_host, self.physical_offset)


class Scattered(msgspec.Struct, frozen=True, gc=False):
    """Physical offsets and queue offsets of a batch of which some messages were stored before, so
    that they are not consecutive."""

    places: list[int]
    queue_offsets: list[int]


#: Called once with the place of a stored record, or with the error if it was not stored. It must
#: not wait.
OnOutcome = Callable[[PutResult | CometError], None]


#: A send that waits for its response: peer, request, queue id, queue offset of the (first) message,
#: and one of: the physical offset of a single message, the rows of a batch, the parts of a large
#: batch, the message ids of a large batch, or the scattered places of a batch.
WaitingSend = tuple[
    "Peer", "Request[Any]", int, int, "int | SentRows | list[WriteBatch] | bytes | Scattered"
]
#: A transaction whose end waits for its turn: half offset, half message, queue offset of the op
#: message, and the peer and the request that asked for it, if any.
WaitingTransaction = tuple[int, "Half", int, "Peer | None", "Request[Any] | None"]
#: Called with the transactions of a turn, also those in rows, and the error of the turn, if any.
TransactionsEnded = Callable[
    [list[WaitingTransaction], "list[WaitingRows]", CometError | None], None
]
#: Called for each record that the broker itself appended: topic, properties, queue id, physical
#: offset, queue offset.
Hearer = Callable[[str, Mapping[str, str], int, int, int], None]
#: A put that waits: its callback, and its result if the turn succeeds.
WaitingPut = tuple[OnOutcome, PutResult]


#: Plain sends and transactions of one connection that wait for their responses: the peer, the
#: batch, and the first row and the end of the range in it.
WaitingRows = tuple["Peer", "TransactionBatch", int, int]


class Turn(msgspec.Struct, eq=False):
    """Requests whose records were appended in one turn of the loop, and that wait for the outcome.

    ``end`` is the physical offset at which the turn ends, set by its commit. ``send_count`` sends
    wait for the turn.
    """

    sends: list[WaitingSend] = msgspec.field(default_factory=list)
    end: int = 0
    send_count: int = 0
    rows: list[WaitingRows] = msgspec.field(default_factory=list)
    puts: list[WaitingPut] = msgspec.field(default_factory=list)
    transactions: list[WaitingTransaction] = msgspec.field(default_factory=list)
    watchers: list[asyncio.Future[None]] = msgspec.field(default_factory=list)
    rows_with_ends: list[WaitingRows] = msgspec.field(default_factory=list)

    @property
    def is_awaited(self) -> bool:
        """True if a request, a transaction or a future waits for the outcome."""
        return bool(self.rows or self.sends or self.transactions or self.puts or self.watchers)

    def join(self, later: Turn) -> None:
        """Add what waits for a later turn, so that both are answered together."""
        self.sends += later.sends
        self.rows += later.rows
        self.puts += later.puts
        self.transactions += later.transactions
        self.watchers += later.watchers
        self.rows_with_ends += later.rows_with_ends
        self.send_count += later.send_count
        self.end = later.end

    def without_sends(self) -> Turn:
        """Move everything but the sends to a new turn, which waits separately; return that."""
        rest = Turn(
            end=self.end, puts=self.puts, transactions=self.transactions, watchers=self.watchers
        )
        self.puts, self.transactions, self.watchers = [], [], []
        return rest

    def end_watch(self, error: CometError | None) -> None:
        """Complete the futures that wait for the turn, with ``error`` if it failed."""
        for done in self.watchers:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
