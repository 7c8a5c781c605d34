"""Appends and their acknowledgement: one commit per turn of the event loop, then the flush policy.

All records are stored through :class:`Appender`. Handlers append records during a turn; at its end
the store writes all of them at once, and only then are the responses sent. A :class:`Turn` holds
the requests that wait for that. With SYNC_FLUSH a turn is parked until the log is durable up to the
turn's end; a SYNC_MASTER then parks it until enough slaves have the log up to there. If the write
fails, every append of the turn is answered with the store's error and none of its records becomes
visible.

    append ... append | commit (one pwrite) | ASYNC_FLUSH: stored
                                            | SYNC_FLUSH: park -> fdatasync -> stored
                                            |                  -> deadline: FLUSH_DISK_TIMEOUT
                      | transient pool | sends: stored
                                       | other records: park -> pwrite -> stored
    stored | ASYNC_MASTER: answer
           | SYNC_MASTER: too few slaves connected: SLAVE_NOT_AVAILABLE
           |              park -> enough slaves have it -> answer
           |                   -> deadline: FLUSH_SLAVE_TIMEOUT

With a transient pool (store/transientpool.py) only sends of clients are answered before they are
written. A record that the broker moves, for example a delayed message that is due, waits for the
write. Until then, the record that it was copied from remains valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from cometmq.broker.stats import SLOW_PUT_MS, PutTimes
from cometmq.core.errors import CometError, StoreError
from cometmq.core.offsetwaiters import OffsetWaiters
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.ids import encode_offset_id
from cometmq.net.eventloop import SHORT_NS
from cometmq.protocol.codes import ResponseCode
from cometmq.store.config import FlushDiskType

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.clock import Clock
    from cometmq.net.eventloop import Watchdog
    from cometmq.net.peer import Peer
    from cometmq.protocol.frame import Request
    from cometmq.speedups import Half, TransactionBatch, WriteBatch
    from cometmq.store.messagestore import MessageStore, SentRows

log = logging.getLogger(__name__)


class OutgoingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that the broker itself stores, for example a retry or a delayed message that is due.

    The queue ``queue_id`` must exist. The last three fields (hash of the tag, encoded properties,
    index keys) are computed from ``properties`` where they are None.
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
    """Place of a stored record. ``code`` is SUCCESS; after a timeout or without enough slaves it is
    another one, and the record is less durable than the flush policy asks."""

    code: int
    physical_offset: int
    queue_offset: int
    store_host: bytes

    @property
    def message_id(self) -> str:
        """The message id made of the store's address and the physical offset."""
        return encode_offset_id(self.store_host, self.physical_offset)


class Scattered(msgspec.Struct, frozen=True, gc=False):
    """Physical offsets and queue offsets of the messages of a batch. They are not consecutive,
    because some of the messages were stored before."""

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
#: message, and the peer and the request that ended it, if any.
WaitingTransaction = tuple[int, "Half", int, "Peer | None", "Request[Any] | None"]
#: Called with the transactions of a turn, the rows that end transactions, and the error of the
#: turn, if any.
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
    wait for the turn. ``rows_with_ends`` are the items of ``rows`` that end transactions.
    ``begun_ns`` is the time of the first append; 0 if the turn is not timed.
    """

    sends: list[WaitingSend] = msgspec.field(default_factory=list)
    end: int = 0
    send_count: int = 0
    rows: list[WaitingRows] = msgspec.field(default_factory=list)
    puts: list[WaitingPut] = msgspec.field(default_factory=list)
    transactions: list[WaitingTransaction] = msgspec.field(default_factory=list)
    watchers: list[asyncio.Future[None]] = msgspec.field(default_factory=list)
    rows_with_ends: list[WaitingRows] = msgspec.field(default_factory=list)
    begun_ns: int = 0

    @property
    def is_awaited(self) -> bool:
        """True if a request, a transaction or a future waits for the outcome."""
        return bool(self.rows or self.sends or self.transactions or self.puts or self.watchers)

    def join(self, later: Turn) -> None:
        """Add everything that waits for ``later``, so that both turns are answered together."""
        self.sends += later.sends
        self.rows += later.rows
        self.puts += later.puts
        self.transactions += later.transactions
        self.watchers += later.watchers
        self.rows_with_ends += later.rows_with_ends
        self.send_count += later.send_count
        self.end = later.end

    def without_sends(self) -> Turn:
        """Move all but the sends of clients to a new turn, which can be parked; return it."""
        rest = Turn(
            end=self.end, puts=self.puts, transactions=self.transactions, watchers=self.watchers,
            begun_ns=self.begun_ns,
        )  # fmt: skip
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


EXPIRE_INTERVAL_MS: Final = 100
_NEVER_MS: Final = 1 << 62


class Replicated(Protocol):
    """The slaves that a SYNC_MASTER's responses wait for."""

    #: Listeners that get the new :attr:`reached` when it moves.
    on_reached: list[Callable[[int], None]]

    @property
    def reached(self) -> int:
        """Physical offset up to which enough slaves have the log."""
        ...

    @property
    def has_enough(self) -> bool:
        """True while enough slaves are connected to wait for."""
        ...


#: Answers a request with the error that prevented its messages from being stored.
Fail = Callable[["Peer", "Request[Any]", CometError], None]


class Answers(Protocol):
    """Writes the responses of client sends, with a response code and a remark."""

    def answer(self, sends: list[WaitingSend], code: int, remark: str | None) -> None:
        """Answer single sends and batches."""
        ...

    def answer_rows(self, rows: list[WaitingRows], code: int, remark: str | None) -> None:
        """Answer rows of plain sends."""
        ...


class AppendListener(Protocol):
    """Listener for the records that the broker itself appends."""

    def appended(
        self, topic: str, properties: Mapping[str, str], queue_id: int, place: int, offset: int
    ) -> None:
        """Note a record at physical offset ``place`` and queue offset ``offset``."""
        ...

    def turn_failed(self) -> None:
        """Forget the records of a turn that was not written."""
        ...


class Appender:
    """Appends records to the store, commits them once per turn, and reports the outcome.

    ``answers`` writes the responses of client sends, ``listener`` is notified of the broker's own
    records, ``put_times`` counts how long the puts took. Listeners of ``on_transactions_ended`` get
    the transactions whose end was appended in a turn, and the error of the turn, if any; they must
    not wait or raise.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        clock: Clock,
        store_host: bytes,
        watchdog: Watchdog,
        answers: Answers | None = None,
        listener: AppendListener | None = None,
        put_times: PutTimes | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._store_host = store_host
        self._loop = asyncio.get_running_loop()
        self._synced = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._slaves: Replicated | None = None
        self._config: BrokerConfig | None = None
        self._copied: OffsetWaiters[Turn] = OffsetWaiters()
        #: Turns whose records are in the transient pool and not yet written to the log.
        self._unwritten: OffsetWaiters[Turn] = OffsetWaiters()
        self._turn = Turn()
        #: Sends that wait for the write only, neither for a sync nor for slaves.
        self._unsynced = Turn()
        #: Repeated sends whose messages are flushed as the policy asks, and that wait for slaves.
        self._repeated = Turn()
        #: True while the end of the current turn is scheduled.
        self._due = False
        self._begun_ns = 0
        self._put_times = PutTimes() if put_times is None else put_times
        #: True while the turn has a large batch that is not written yet.
        self._is_long = False
        #: Set while a turn may wait for a sync or for slaves.
        self._waits = asyncio.Event()
        self._watchdog = watchdog
        self._now_ns = clock.monotonic_ns
        #: Actions of :meth:`between_turns`, run after the next commit, and their callers' futures.
        self._actions: list[tuple[Callable[[], None], asyncio.Future[None]]] = []
        self.waiting_sends = 0
        self.answer_rows = _unanswered if answers is None else answers.answer_rows
        self.answer_sends = _unanswered if answers is None else answers.answer
        self.on_transactions_ended: list[TransactionsEnded] = []
        self.on_append = None if listener is None else listener.appended
        self.on_turn_failed = _nothing if listener is None else listener.turn_failed
        store.on_durable.append(self._durable)
        store.on_sync_failed.append(self._sync_failed)
        if store.transient is not None:
            store.on_progress.append(self._written)
            store.transient.on_lost.append(self._lost)

    def wait_for_slaves(self, slaves: Replicated, config: BrokerConfig) -> None:
        """Answer turns only once enough slaves have them, or after ``slave_timeout``."""
        self._slaves = slaves
        self._config = config
        slaves.on_reached.append(self._slaves_have)

    @property
    def lacks_slaves(self) -> bool:
        """True while a SYNC_MASTER has too few slaves connected to copy a new record."""
        return self._slaves is not None and not self._slaves.has_enough

    def add_send(self, send: WaitingSend, *, wait_durable: bool) -> None:
        """Answer a send that was appended in this turn once the flush policy is met; without
        ``wait_durable`` as soon as it is written."""
        if not self._due:
            self._schedule()
        waits = self._synced or self._slaves is not None
        turn = self._turn if wait_durable or not waits else self._unsynced
        turn.sends.append(send)
        turn.send_count += 1

    def add_rows(self, peer: Peer, rows: SentRows, send_count: int) -> None:
        """Answer rows of plain sends once the flush policy is met; see :meth:`add_send`."""
        if not self._due:
            self._due = True
            self._begun_ns = self._now_ns()
            self._loop.call_soon(self._end_of_turn)
        batch, first, stop = rows
        turn, waiting = self._turn, (peer, batch, first, stop)
        turn.rows.append(waiting)
        if batch.end_count:
            turn.rows_with_ends.append(waiting)
        turn.send_count += send_count

    def add_repeat(self, send: WaitingSend, place: int, *, wait_durable: bool) -> None:
        """Answer a repeated send once the flush policy is met for the message stored first.

        That message is at physical offset ``place``; it was appended before, maybe in this turn.
        """
        slaves = self._slaves
        if wait_durable and self._synced and place >= self._store.durable_offset:
            self.add_send(send, wait_durable=True)
        elif wait_durable and slaves is not None and place >= slaves.reached:
            self._schedule()
            self._repeated.sends.append(send)
            self._repeated.send_count += 1
        else:
            self.add_send(send, wait_durable=False)

    async def put(self, record: OutgoingRecord) -> PutResult:
        """Store one record and wait until the flush policy is met.

        Raises StoreError if it was not stored, and MessageIllegal if it cannot be appended.
        """
        return await self.place(record)

    def place(self, record: OutgoingRecord) -> asyncio.Future[PutResult]:
        """Append a record in this turn; return a future of the result, as :meth:`put` returns it.

        Raises StoreError and MessageIllegal if it cannot be appended.
        """
        done: asyncio.Future[PutResult] = self._loop.create_future()
        self.append(record, partial(_resolve, done))
        return done

    def append(self, record: OutgoingRecord, on_outcome: OnOutcome) -> None:
        """Append a record in this turn; call ``on_outcome`` with the outcome.

        ``on_outcome`` is called before the responses of the turn's sends are written. Raises
        StoreError and MessageIllegal if the record cannot be appended.
        """
        physical, queue_offset = self.append_record(record)
        result = PutResult(ResponseCode.SUCCESS, physical, queue_offset, self._store_host)
        self._turn.puts.append((on_outcome, result))

    def append_record(self, record: OutgoingRecord) -> tuple[int, int]:
        """Append a record in this turn; return its physical offset and its queue offset.

        Does not report the outcome of the turn; for that, call :meth:`add_transaction` or
        :meth:`turn_outcome` too. Raises StoreError and MessageIllegal if the record cannot be
        appended.
        """
        properties, raw = record.properties, record.raw_properties
        if raw is None:
            raw = props.encode(properties)
        code, keys = record.tag_code, record.keys
        queue = self._store.queue(record.topic, record.queue_id)
        physical, queue_offset = self._store.append(
            queue,
            record.body,
            raw,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_ms=record.born_ms,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
            prepared_offset=record.prepared_offset,
            tag_code=tag_code(properties.get(props.TAGS)) if code is None else code,
            keys=props.index_keys(properties) if keys is None else keys,
        )
        if self.on_append is not None:
            self.on_append(record.topic, properties, record.queue_id, physical, queue_offset)
        self._schedule()
        return physical, queue_offset

    def add_transaction(self, transaction: WaitingTransaction) -> None:
        """End a transaction once the flush policy is met for its records of this turn."""
        self._schedule()
        self._turn.transactions.append(transaction)

    def turn_outcome(self, *, nothing: bool = False) -> asyncio.Future[None]:
        """Return a future for records that the caller itself appended to the store in this turn.

        It is done once the flush policy is met or its timeout has passed, and fails with StoreError
        if the records were not stored. With ``nothing`` it is done already: the caller appended
        none.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        if nothing:
            done.set_result(None)
            return done
        self._schedule()
        self._turn.watchers.append(done)
        return done

    async def written(self, physical_offset: int) -> None:
        """Wait until the transient pool has written the record at a physical offset.

        Returns at once without a pool. Raises StoreError if the record is lost.
        """
        end = physical_offset + 1
        if self._store.written_offset >= end or self._store.committed_offset < end:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._unwritten.park(end, _NEVER_MS, Turn(end=end, watchers=[done]))
        await done

    async def between_turns(self, action: Callable[[], None]) -> None:
        """Run ``action`` while the store has no uncommitted record, never between a send and its
        commit. Raises what ``action`` raises."""
        if not self._due:
            action()
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._actions.append((action, done))
        await done

    async def expire_forever(self) -> None:
        """Answer turns that waited too long: FLUSH_DISK_TIMEOUT for a sync, after
        syncFlushTimeout, and FLUSH_SLAVE_TIMEOUT for slaves."""
        while True:
            if not (len(self._store.sync_waiters) or len(self._copied)):
                self._waits.clear()
                await self._waits.wait()
            await self._clock.sleep_ms(EXPIRE_INTERVAL_MS)
            expired = self._store.sync_waiters.expire(self._clock.monotonic_ms())
            for turn in cast("list[Turn]", expired):
                self.waiting_sends -= turn.send_count
                remark = f"the log was not synced within {self._store.config.sync_flush_timeout} ms"
                self._answer(turn, ResponseCode.FLUSH_DISK_TIMEOUT, remark)
            timeout_ms = 0 if self._config is None else self._config.slave_timeout
            remark = f"too few slaves acknowledged the message within {timeout_ms} ms"
            for turn in self._copied.expire(self._clock.monotonic_ms()):
                self.waiting_sends -= turn.send_count
                self._answer(turn, ResponseCode.FLUSH_SLAVE_TIMEOUT, remark)

    def add_large(self, send: WaitingSend, *, wait_durable: bool) -> None:
        """Answer a large batch as :meth:`add_send` does; it is written in several turns of the
        loop."""
        self.add_send(send, wait_durable=wait_durable)
        self._is_long = True

    def end_turn(self) -> None:
        """Commit the records appended so far without waiting for the end of the turn."""
        self._is_long = False
        if self._due:
            self._end_of_turn()

    @property
    def is_idle(self) -> bool:
        """True if no send waits for its commit, the device or slaves."""
        return not self._due and not self.waiting_sends

    def close(self) -> None:
        """Commit the last turn; call this before the store closes.

        Turns that wait for slaves are answered with FLUSH_SLAVE_TIMEOUT.
        """
        self.end_turn()
        if self._store.transient is not None:
            self._store.transient.close()
        for turn in self._copied.drain():
            self.waiting_sends -= turn.send_count
            self._answer(turn, ResponseCode.FLUSH_SLAVE_TIMEOUT, "the broker is stopping")

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            self._begun_ns = self._now_ns()
            self._loop.call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        begin_ns = self._now_ns()
        # A large batch is written in parts, one per turn of the loop, before the commit.
        if self._is_long:
            self._is_long = self._store.write_early()
            if self._is_long:
                self._loop.call_soon(self._end_of_turn)
                return
        self._due = False
        self._commit()
        if self._actions:
            actions, self._actions = self._actions, []
            for action, done in actions:
                try:
                    action()
                except Exception as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)
        took_ns = self._now_ns() - begin_ns
        if took_ns > SHORT_NS:
            self._watchdog.turn("commit", took_ns)

    def _commit(self) -> None:
        # Callbacks of this turn may append records, which belong to the next turn.
        turn, self._turn = self._turn, Turn()
        turn.begun_ns = self._unsynced.begun_ns = self._repeated.begun_ns = self._begun_ns
        store = self._store
        try:
            store.commit()
        except StoreError as error:
            log.error("append failed messages=%d error=%s", turn.send_count, error)
            unsynced, self._unsynced = self._unsynced, Turn()
            repeated, self._repeated = self._repeated, Turn()
            for failed in (unsynced, repeated, turn):
                self._fail(failed, error)
            self.on_turn_failed()
            return
        turn.end = store.log.held
        # The write is enough for these sends: answer them before the turn is parked.
        if self._unsynced.sends:
            unsynced, self._unsynced = self._unsynced, Turn()
            self._answer(unsynced, ResponseCode.SUCCESS, None)
        if self._repeated.sends:
            repeated, self._repeated = self._repeated, Turn()
            repeated.end = turn.end
            self._answer_when_copied(repeated)
        if self._synced:
            self._park(turn)
        elif store.transient is not None:
            self._answer_sends_early(turn)
            store.transient.write_soon()
        elif self._slaves is not None:
            self._answer_when_copied(turn)
        else:
            self._answer(turn, ResponseCode.SUCCESS, None)

    def _answer_sends_early(self, turn: Turn) -> None:
        """Answer the sends of a turn that is in the transient pool; park the rest of it.

        A send is acknowledged without the write; records that the broker moved wait for it.
        """
        if turn.end > self._store.written_offset:
            waiting = turn.without_sends()
            if waiting.is_awaited:
                self._unwritten.park(turn.end, _NEVER_MS, waiting)
        self._answer_when_copied(turn)

    def _written(self) -> None:
        for turn in self._unwritten.advance(self._store.written_offset):
            self._answer_when_copied(turn)

    def _lost(self, error: StoreError) -> None:
        """Fail the turns whose records were lost with the transient pool."""
        for turn in self._unwritten.drain():
            self._fail(turn, error)
        for turn in self._copied.drain():
            self.waiting_sends -= turn.send_count
            if turn.end > self._store.written_offset:
                self._fail(turn, error)
            else:
                self._answer_when_copied(turn)
        self.on_turn_failed()

    def _park(self, turn: Turn) -> None:
        """Park a turn until it is synced, and start a sync."""
        store = self._store
        if turn.is_awaited:
            self.waiting_sends += turn.send_count
            deadline_ms = self._now_ns() // 1_000_000 + self._store.config.sync_flush_timeout
            store.sync_waiters.park(turn.end, deadline_ms, turn)
            self._waits.set()
        # Also for sends that do not wait: consumers see a message only once it is durable.
        store.sync()

    def _durable(self, tokens: list[object]) -> None:
        first, *later = cast("list[Turn]", tokens)
        if later and self._slaves is None:
            for turn in (first, *later):
                self._time(turn)
        # Each connection gets one write for all turns that a sync covered.
        for turn in later:
            first.join(turn)
        self.waiting_sends -= first.send_count
        self._answer_when_copied(first)

    def _answer_when_copied(self, turn: Turn) -> None:
        """Answer a turn that is flushed as the policy asks; if slaves must have it first, park it.

        With too few slaves connected it is answered at once, with SLAVE_NOT_AVAILABLE.
        """
        slaves = self._slaves
        if slaves is None or slaves.reached >= turn.end:
            self._answer(turn, ResponseCode.SUCCESS, None)
        elif not slaves.has_enough:
            remark = "stored on this broker only: too few slaves are connected"
            self._answer(turn, ResponseCode.SLAVE_NOT_AVAILABLE, remark)
        else:
            self.waiting_sends += turn.send_count
            timeout_ms = 0 if self._config is None else self._config.slave_timeout
            deadline_ms = self._now_ns() // 1_000_000 + timeout_ms
            self._copied.park(turn.end, deadline_ms, turn)
            self._waits.set()

    def _slaves_have(self, offset: int) -> None:
        for turn in self._copied.advance(offset):
            self.waiting_sends -= turn.send_count
            self._answer(turn, ResponseCode.SUCCESS, None)

    def _sync_failed(self, tokens: list[object], error: StoreError) -> None:
        for turn in cast("list[Turn]", tokens):
            self.waiting_sends -= turn.send_count
            self._fail(turn, error)

    def _time(self, turn: Turn) -> None:
        """Count how long the puts of a turn took, once."""
        if turn.begun_ns:
            took_ms = (self._now_ns() - turn.begun_ns) // 1_000_000
            self._put_times.add(took_ms, turn.send_count + len(turn.puts))
        turn.begun_ns = 0

    def _answer(self, turn: Turn, code: int, remark: str | None) -> None:
        took_ms = (self._now_ns() - turn.begun_ns) // 1_000_000
        if took_ms <= SLOW_PUT_MS:  # most turns: inlined, because a call costs time
            self._put_times.by_ms[took_ms] += turn.send_count + len(turn.puts)
        else:
            self._time(turn)
        for on_outcome, result in turn.puts:
            if code != ResponseCode.SUCCESS:
                result = msgspec.structs.replace(result, code=code)
            _report(on_outcome, result)
        if turn.transactions or turn.rows_with_ends:
            for ended in self.on_transactions_ended:
                ended(turn.transactions, turn.rows_with_ends, None)
        if turn.rows:
            self.answer_rows(turn.rows, code, remark)
        if turn.sends:
            self.answer_sends(turn.sends, code, remark)
        if turn.watchers:
            turn.end_watch(None)

    def _fail(self, turn: Turn, error: CometError) -> None:
        self._time(turn)
        for on_outcome, _ in turn.puts:
            _report(on_outcome, error)
        if turn.transactions or turn.rows_with_ends:
            for ended in self.on_transactions_ended:
                ended(turn.transactions, turn.rows_with_ends, error)
        if turn.rows:
            self.answer_rows(turn.rows, error.code, error.remark)
        if turn.sends:
            self.answer_sends(turn.sends, error.code, error.remark)
        turn.end_watch(error)


def _report(on_outcome: OnOutcome, outcome: PutResult | CometError) -> None:
    try:
        on_outcome(outcome)
    except Exception:
        # The record is stored. A callback that fails must not fail the rest of the turn.
        log.exception("outcome_callback_failed callback=%r", on_outcome)


def _resolve(done: asyncio.Future[PutResult], outcome: PutResult | CometError) -> None:
    if done.done():
        return
    if isinstance(outcome, PutResult):
        done.set_result(outcome)
    else:
        done.set_exception(outcome)


def _nothing() -> None:
    """Do nothing: the default of ``on_turn_failed``."""


def _unanswered(sends: Sequence[object], code: int, remark: str | None) -> None:
    raise AssertionError(f"{len(sends)} sends have no connection to answer: {code} {remark}")
