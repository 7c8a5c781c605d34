"""The answers of sends: one write a connection, whatever a turn of the loop stored.

A plain answer is a template filled in. What is rare goes a slower way: answers in the binary codec,
with a remark or a handle to recall the message, those that hooks hear of, and those of batches of
which some messages were stored before.
"""

from __future__ import annotations

from itertools import chain, islice, repeat
from struct import pack
from typing import TYPE_CHECKING, Final

from msgspec.json import encode

from cometmq.broker.turns import Scattered
from cometmq.core.slices import join_in_slices
from cometmq.net.router import Reply
from cometmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from cometmq.protocol.frame import JSON, Request, lengths
from cometmq.protocol.headers import NoFields, SendMessageResponse

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.hooks import SendHooks
    from cometmq.broker.topics import TopicTable
    from cometmq.broker.turns import WaitingRows, WaitingSend
    from cometmq.core.clock import Clock
    from cometmq.core.errors import CometError
    from cometmq.net.peer import Peer
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.headers import SendMessage


class SendAnswers:
    """Writes them. ``recall_handles`` are of sends that are not answered yet, by physical offset;
    ``unannounced`` are topics that a send created and that name servers do not know yet."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        hooks: SendHooks,
        store_host: bytes,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._config = config
        self._topics = topics
        self._hooks = hooks
        self._hooks_added = hooks.added
        self._id_prefix = store_host.hex().upper()
        head, *rest = _answer_pieces(config.region_id, config.trace_on)
        self._head = head
        self._pieces = (head + self._id_prefix.encode(), *rest)
        self._tasks = tasks
        self._clock = clock
        self.recall_handles: dict[int, str] = {}
        self.unannounced: set[str] = set()

    def answer(self, sends: list[WaitingSend], code: int, remark: str | None) -> None:
        """Write the answers of sends whose turn has ended; one write a connection."""
        if self.unannounced:
            sends = self._hold_first(sends, code, remark)
        self._answer(sends, code, remark)

    def _answer(self, sends: list[WaitingSend], code: int, remark: str | None) -> None:
        peers: dict[Peer, None] = {}
        head, rest = self._head, self._pieces[1:]
        prefix = self._id_prefix
        hooked = bool(self._hooks_added)
        for peer, request, queue_id, queue_offset, physical in sends:
            slow = hooked or request.codec != JSON or code != 0 or remark is not None
            slow = slow or bool(peer.router.hooks)
            handles = self.recall_handles
            if slow or (handles and isinstance(physical, int) and physical in handles):
                self._answer_slowly((peer, request, queue_id, queue_offset, physical), code, remark)
                continue
            if request.flag & 2:
                continue
            if isinstance(physical, int):
                ids = f"{prefix}{physical:016X}"
            elif isinstance(physical, list) and len(physical) == 1:
                ids = message_ids(prefix, physical[0])
            else:
                self._answer_large((peer, request, queue_id, queue_offset, physical), code)
                continue
            between, before_offset, before_opaque, tail = rest
            answer = b"%b%b%b%d%b%d%b%d%b" % (
                head, ids.encode(), between, queue_id, before_offset, queue_offset, before_opaque,
                request.opaque, tail,
            )  # fmt: skip
            peer.push(lengths(len(answer)) + answer)
            peers[peer] = None
        for peer in peers:
            peer.flush()

    def answer_rows(self, rows: list[WaitingRows], code: int, remark: str | None) -> None:
        """:meth:`answer` for plain sends."""
        if code or remark is not None:
            for peer, batch, first, stop in rows:
                self._answer_rows_slowly(peer, batch.opaques(first, stop), code, remark)
            return
        peers: dict[Peer, None] = {}
        for peer, batch, first, stop in rows:
            peer.push(batch.answers(first, stop, self._pieces))
            peers[peer] = None
        for peer in peers:
            peer.flush()

    def _answer_rows_slowly(
        self,
        peer: Peer,
        rows: list[tuple[int, bool, int, int, int]],
        code: int,
        remark: str | None,
    ) -> None:
        for opaque, oneway, queue_id, queue_offset, physical in rows:
            if oneway:
                continue
            header = None
            if code in _STORED:
                header = SendMessageResponse(
                    msg_id=self.ids([physical]),
                    queue_id=queue_id,
                    queue_offset=queue_offset,
                    region=self._config.region_id,
                    trace_on=self._config.trace_on,
                )
            request = Request(code=RequestCode.SEND_MESSAGE_V2, header=NoFields(), opaque=opaque)
            peer.reply(request, Reply(code, header=header, remark=remark))

    def _hold_first(
        self, sends: list[WaitingSend], code: int, remark: str | None
    ) -> list[WaitingSend]:
        """Keep the answers of sends to topics that name servers do not know yet: who knows of a
        message asks for the route to it, and asks again only 30 s later."""
        held = [send for send in sends if send[1].header.topic in self.unannounced]
        if held:
            self._topics.when_announced(lambda: self._answer(held, code, remark))
        return [send for send in sends if send[1].header.topic not in self.unannounced]

    def _answer_slowly(self, send: WaitingSend, code: int, remark: str | None) -> None:
        peer, request, queue_id, queue_offset, physical = send
        stored = code in _STORED
        handle = self.recall_handles.pop(physical, None) if isinstance(physical, int) else None
        if stored and isinstance(physical, list) and len(physical) > 1:
            self._answer_in_slices(send, physical, code, remark)
            return
        header = None
        count = 0
        queue_offsets = None
        if stored:
            if isinstance(physical, bytes):
                ids = physical.decode()
            elif isinstance(physical, Scattered):
                ids = self.ids(physical.places)
                queue_offsets = ",".join(map(str, physical.queue_offsets))
            else:
                ids = self.ids([physical] if isinstance(physical, int) else physical[0])
            count = ids.count(",") + 1
            header = SendMessageResponse(
                msg_id=ids,
                queue_id=queue_id,
                queue_offset=queue_offset,
                region=self._config.region_id,
                trace_on=self._config.trace_on,
                recall_handle=handle,
                queue_offsets=queue_offsets,
            )
        if self._hooks:
            self._hooks.after_send(peer, request, code, count)
        peer.reply(request, Reply(code, header=header, remark=remark))

    def _answer_large(self, send: WaitingSend, code: int) -> None:
        """Answer a batch of thousands of messages; once their ids are made they are not copied."""
        peer, request, queue_id, queue_offset, ids = send
        if isinstance(ids, Scattered):
            self._answer_slowly(send, code, None)
            return
        if isinstance(ids, list):
            self._answer_in_slices(send, ids, code, None)
            return
        assert isinstance(ids, bytes)
        after = b"%b%d%b%d%b%d%b" % (
            self._pieces[1], queue_id, self._pieces[2], queue_offset, self._pieces[3],
            request.opaque, self._pieces[4],
        )  # fmt: skip
        size_bytes = len(self._head) + len(ids) + len(after)
        peer.write_all((lengths(size_bytes) + self._head, ids, after))

    def fail(self, peer: Peer, request: Request[SendMessage], error: CometError) -> None:
        """Answer a send whose error came after its turn."""
        self._answer_slowly((peer, request, 0, 0, 0), error.code, error.remark)

    def ids(self, places: list[int]) -> str:
        """The ids of messages at physical offsets, joined by commas."""
        return message_ids(self._id_prefix, places)

    def _answer_in_slices(
        self, send: WaitingSend, places: list[list[int]], code: int, remark: str | None
    ) -> None:
        """Answer a batch whose messages are so many that their ids alone take several turns."""
        name = f"answer of a large batch {send[0].address}"
        self._tasks.spawn(self._join_and_answer(send, places, code, remark), name=name)

    async def _join_and_answer(
        self, send: WaitingSend, places: list[list[int]], code: int, remark: str | None
    ) -> None:
        pieces = (self.ids(piece).encode() for piece in places)
        separated = chain.from_iterable(zip(repeat(b","), pieces))
        ids = await join_in_slices(islice(separated, 1, None), self._clock)
        self.answer([(*send[:4], ids)], code, remark)


def _answer_pieces(region: str, trace_on: bool) -> tuple[bytes, ...]:
    """What stands between the words of an answer that says success: before the ids, the queue, its
    offset and the opaque, and behind that."""
    fields = encode({"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"})
    return (
        b'{"code":0,"extFields":' + fields[:-1] + b',"msgId":"',
        b'","queueId":"',
        b'","queueOffset":"',
        b'"},"flag":1,"language":"PYTHON","opaque":',
        b',"serializeTypeCurrentRPC":"JSON","version":%d}' % OUR_VERSION,
    )


_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)


def message_ids(host: str, physical_offsets: list[int]) -> str:
    """The ids of a batch's messages, joined by commas; ``host`` is the store host in hex."""
    digits = pack(f">{len(physical_offsets)}q", *physical_offsets).hex().upper()
    # One conversion for all, then slices: a third of the time of formatting each.
    return host + f",{host}".join([digits[at : at + 16] for at in range(0, len(digits), 16)])
