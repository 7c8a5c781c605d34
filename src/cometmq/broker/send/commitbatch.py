"""What a turn of the loop appended, and who waits to hear how it ended.

broker/send/acknowledgement.py appends, commits and tells them.
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
    """A record that the broker itself stores: a retry, a delayed message that is due.

    ``queue_id`` must exist. The last three follow from the properties, and are given where they are
    at hand: the hash of the tag, the properties as a record holds them, and the index keys.
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
    """Where a record was stored. ``code`` is SUCCESS or says what its durability lacks."""

    code: int
    physical_offset: int
    queue_offset: int
    store_host: bytes

    @property
    def message_id(self) -> str:
        """The id that the broker gave."""
        return encode_offset_id(self.store_host, self.physical_offset)


class Scattered(msgspec.Struct, frozen=True, gc=False):
    """Where the messages of a batch lie of which some were stored before: physical offsets, and
    offsets in a queue."""

    places: list[int]
    queue_offsets: list[int]


#: Is told once where a record was stored, or why it was not. It must not wait.
Told = Callable[[PutResult | CometError], None]


#: A send that waits for its answer: peer, request, queue id, queue offset of the (first) message,
#: physical offset of a single message, the rows of a batch, the parts of a large one, the ids of
#: its messages, or places that do not follow each other.
WaitingSend = tuple[
    "Peer", "Request[Any]", int, int, "int | SentRows | list[WriteBatch] | bytes | Scattered"
]
#: A transaction whose end waits: half offset, half message, queue offset of the op message, and who
#: asked for it, if anybody did.
WaitingTransaction = tuple[int, "Half", int, "Peer | None", "Request[Any] | None"]
#: Ends transactions whose turn is over, also those in rows, or is told the error of that turn.
Ender = Callable[[list[WaitingTransaction], "list[WaitingRows]", CometError | None], None]
#: Hears of records that the broker itself appended: topic, properties, queue id, physical offset,
#: queue offset.
Hearer = Callable[[str, Mapping[str, str], int, int, int], None]
#: A put that waits: who is told, and its result, should the turn succeed.
WaitingPut = tuple[Told, PutResult]


#: Plain sends and transactions of one connection that wait for their answers: its peer, and their
#: rows.
WaitingRows = tuple["Peer", "TransactionBatch", int, int]


class Turn(msgspec.Struct, eq=False):
    """What one turn of the loop appended and must be answered; it ends at the physical offset
    ``end``, once it is committed. ``send_count`` sends wait for it."""

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
        """Whether anybody hears how it ended."""
        return bool(self.rows or self.sends or self.transactions or self.puts or self.watchers)

    def without_sends(self) -> Turn:
        """Take away all but the sends, to wait on its own."""
        rest = Turn(
            end=self.end, puts=self.puts, transactions=self.transactions, watchers=self.watchers
        )
        self.puts, self.transactions, self.watchers = [], [], []
        return rest

    def end_watch(self, error: CometError | None) -> None:
        """Tell those who only wait for the turn how it ended."""
        for done in self.watchers:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
