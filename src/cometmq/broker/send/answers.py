"""Responses of sends: one write per connection for all sends that a turn of the loop stored.

A plain response is a template filled in. A slower path serves the rare cases: responses in the
binary codec, with a remark or a recall handle, those that hooks must see, and those of batches of
which some messages were stored before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cometmq.broker.acknowledgement import Scattered
from cometmq.net.resources import WAITING_BYTES
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import (
    DONE_HEAD,
    JSON,
    Reply,
    Request,
    encode_done,
    lengths,
    send_pieces,
)
from cometmq.protocol.headers import NoFields, SendMessageResponse
from cometmq.speedups import send_answers

if TYPE_CHECKING:
    from cometmq.broker.acknowledgement import WaitingRows, WaitingSend
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.hooks import SendHooks
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.errors import CometError
    from cometmq.net.peer import Peer
    from cometmq.protocol.headers import SendMessage
    from cometmq.speedups import WriteBatch


class SendAnswers:
    """Writes the responses of sends.

    ``recall_handles`` has the recall handles of sends not answered yet, by physical offset.
    ``unannounced`` has the topics that a send created and that name servers do not know yet.
    ``held_count`` and ``held_bytes`` say how many sends to them wait for their response, and about
    how much memory these take (``Admission.check_new_topic`` bounds both).
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        hooks: SendHooks,
        store_host: bytes,
    ) -> None:
        self._config = config
        self._topics = topics
        self._hooks = hooks
        self._hooks_added = hooks.added
        self._id_prefix = store_host.hex().upper().encode()
        head, *rest = send_pieces(config.region_id, config.trace_on)
        self._head = head
        self._pieces = (head + self._id_prefix, *rest, DONE_HEAD)
        self.recall_handles: dict[int, str] = {}
        self.unannounced: set[str] = set()
        self.held_count = 0
        self.held_bytes = 0

    def answer(self, sends: list[WaitingSend], code: int, remark: str | None) -> None:
        """Write the responses of sends whose turn has ended, with one write per connection.

        The message ids of a large batch are made in later turns of the loop, one part per turn.
        """
        if self.unannounced:
            sends = self._hold_first(sends, code, remark)
        self._answer(sends, code, remark)

    def _answer_large(
        self, send: WaitingSend, parts: list[WriteBatch], ids: list[bytes], code: int,
        remark: str | None,
    ) -> None:  # fmt: skip
        """Make the message ids of the next part; ``ids`` has those of the parts before it."""
        rows = parts[len(ids)]
        ids.append(rows.message_ids(0, rows.count, self._id_prefix))
        if len(ids) < len(parts):
            asyncio.get_running_loop().call_soon(self._answer_large, send, parts, ids, code, remark)
        else:
            self._answer([(*send[:4], b",".join(ids))], code, remark)

    def _answer(self, sends: list[WaitingSend], code: int, remark: str | None) -> None:
        pieces: dict[Peer, list[bytes]] = {}
        head = self._head
        _, between, before_offset, before_opaque, tail, _ = self._pieces
        prefix = self._id_prefix
        hooked = bool(self._hooks_added)
        for send in sends:
            peer, request, queue_id, queue_offset, physical = send
            if isinstance(physical, list) and code in _STORED:
                self._answer_large(send, physical, [], code, remark)
                continue
            slow = hooked or request.codec != JSON or code != 0 or remark is not None
            slow = slow or bool(peer.router.hooks)
            handles = self.recall_handles
            if (
                slow
                or isinstance(physical, (Scattered, list))
                or (handles and isinstance(physical, int) and physical in handles)
            ):
                self._answer_slowly(send, code, remark)
                continue
            if request.flag & 2:
                continue  # one-way
            if isinstance(physical, int):
                ids = b"%b%016X" % (prefix, physical)
            elif isinstance(physical, bytes):
                ids = physical
            else:
                batch, first, stop = physical
                ids = batch.message_ids(first, stop, prefix)
            answer = b"%b%d%b%d%b%d%b" % (
                between,
                queue_id,
                before_offset,
                queue_offset,
                before_opaque,
                request.opaque,
                tail,
            )
            # The ids of a large batch take megabytes: do not copy them.
            size_bytes = len(head) + len(ids) + len(answer)
            pieces.setdefault(peer, []).extend((lengths(size_bytes) + head, ids, answer))
        for peer, answers in pieces.items():
            peer.flush(answers)

    def answer_rows(self, rows: list[WaitingRows], code: int, remark: str | None) -> None:
        """Write the responses of plain sends and transactions whose turn has ended."""
        if code or remark is not None:
            for peer, batch, first, stop in rows:
                self._answer_rows_slowly(peer, batch.opaques(first, stop), code, remark)
            return
        for peer, answers in send_answers(rows, self._pieces):
            peer.flush((answers,))

    def _answer_rows_slowly(
        self,
        peer: Peer,
        rows: list[tuple[int, bool, int, int, list[int], bool]],
        code: int,
        remark: str | None,
    ) -> None:
        for opaque, oneway, queue_id, queue_offset, places, is_end in rows:
            if oneway:
                continue
            header = None
            if is_end and code in _STORED:
                # The transaction has ended; its response does not report a flush timeout.
                peer.write(encode_done(opaque))
                continue
            if code in _STORED:
                header = SendMessageResponse(
                    msg_id=self._ids(places),
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
        """Hold the responses of sends to topics that name servers do not know yet; return the
        other sends.

        A client that learns of a message asks for its route. If it finds none, it asks again only
        30 s later.
        """
        held = [send for send in sends if send[1].header.topic in self.unannounced]
        if held:
            size_bytes = sum(map(_held_bytes, held))
            self.held_count += len(held)
            self.held_bytes += size_bytes
            self._topics.when_announced(lambda: self._release(held, size_bytes, code, remark))
        return [send for send in sends if send[1].header.topic not in self.unannounced]

    def _release(
        self, held: list[WaitingSend], size_bytes: int, code: int, remark: str | None
    ) -> None:
        self.held_count -= len(held)
        self.held_bytes -= size_bytes
        self._answer(held, code, remark)

    def _answer_slowly(self, send: WaitingSend, code: int, remark: str | None) -> None:
        peer, request, queue_id, queue_offset, physical = send
        stored = code in _STORED
        handle = self.recall_handles.pop(physical, None) if isinstance(physical, int) else None
        header = None
        count = 0
        queue_offsets = None
        if stored:
            if isinstance(physical, tuple):
                batch, first, stop = physical
                ids = batch.message_ids(first, stop, self._id_prefix).decode()
            elif isinstance(physical, bytes):
                ids = physical.decode()
            elif isinstance(physical, Scattered):
                ids = self._ids(physical.places)
                queue_offsets = ",".join(map(str, physical.queue_offsets))
            else:
                assert isinstance(physical, int)
                ids = self._ids([physical])
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

    def fail(self, peer: Peer, request: Request[SendMessage], error: CometError) -> None:
        """Answer a send that failed after its handler had returned."""
        self._answer_slowly((peer, request, 0, 0, 0), error.code, error.remark)

    def _ids(self, places: list[int]) -> str:
        """Return the ids of messages at physical offsets, joined by commas."""
        prefix = self._id_prefix.decode()
        return ",".join([f"{prefix}{place:016X}" for place in places])


def _held_bytes(send: WaitingSend) -> int:
    """Return the approximate memory of a send that waits for its response."""
    places = send[4]
    if isinstance(places, tuple):
        return WAITING_BYTES + _ROW_BYTES * (places[2] - places[1])
    if isinstance(places, list):
        return WAITING_BYTES + _ROW_BYTES * sum(part.count for part in places)
    if isinstance(places, Scattered):
        return WAITING_BYTES + _ROW_BYTES * len(places.places)
    return WAITING_BYTES


#: Memory of one message of a batch that waits for its response.
_ROW_BYTES: Final = 64
#: Codes of sends whose messages are stored.
_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)
