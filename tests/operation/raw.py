"""A bare client on the sans-I/O protocol: pipelined requests, no retry, nothing hidden.

What a test says about acknowledged messages must not depend on a client that sends again, so every
send is written once, and its future ends with the answer or with the loss of the connection.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self, cast

from cometmq.message import record
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.connection import Answered, Connection
from cometmq.protocol.frame import Response

Pending = asyncio.Future[Response]

TIMEOUT_S = 60
_SUBSCRIPTION_IN_HEADER = 4


class Lost(ConnectionError):
    """The connection ended before the answer came."""


class RawPeer(asyncio.Protocol):
    """One connection. `sent` counts requests, `waiting` those that have no answer yet."""

    def __init__(self) -> None:
        self.connection: Connection[Pending] = Connection()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent = 0
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: str) -> Self:
        """Opens a connection to `host:port`."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S):
            _, peer = await loop.create_connection(cls, host, int(port))
        return peer

    @property
    def waiting(self) -> int:
        return self.connection.in_flight

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio.Transport without being one.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.connection.receive_data(data)
        while events := self.connection.next_events(256):
            for event in events:
                if isinstance(event, Answered):
                    event.token.set_result(event.response)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiter in self.connection.close():
            if not waiter.done():
                waiter.set_exception(Lost())
        self.closed.set_result(None)

    def write(self, code: RequestCode, header: h.Header, body: bytes = b"") -> Pending:
        """Writes one request at once; the caller bounds how many are in flight."""
        (waiter,) = self.write_many(code, [(header, body)])
        return waiter

    def write_many(
        self, code: RequestCode, requests: Iterable[tuple[h.Header, bytes]]
    ) -> list[Pending]:
        """Writes requests in one go, so that the other side cannot answer some in between."""
        assert self._transport is not None
        waiters: list[Pending] = []
        parts: list[bytes] = []
        for header, body in requests:
            waiter: Pending = asyncio.get_running_loop().create_future()
            _, head = self.connection.encode_request(code, header, waiter, 0, body_bytes=len(body))
            waiters.append(waiter)
            parts += (head, body)
        self.sent += len(waiters)
        self._transport.write(b"".join(parts))
        return waiters

    async def ask(self, code: RequestCode, header: h.Header, body: bytes = b"") -> Response:
        """Writes one request and waits for its answer."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.write(code, header, body)

    async def close(self) -> None:
        """Closes the connection from this side."""
        assert self._transport is not None
        self._transport.close()
        async with asyncio.timeout(TIMEOUT_S):
            await self.closed


def send_header(topic: str, queue_id: int, properties: str, now_ms: int) -> h.SendMessageV2:
    """The header of one plain send."""
    return h.SendMessageV2(
        producer_group="raw",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=now_ms,
        flag=0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )


async def create_topic(peer: RawPeer, topic: str, queues: int) -> None:
    """Makes a topic that is read and written in `queues` queues."""
    header = h.CreateTopic(topic, "TBW102", queues, queues, 6, "SINGLE_TAG", 0, False)
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def queue_range(peer: RawPeer, topic: str, queue_id: int) -> tuple[int, int]:
    """The offsets of a queue's first message and behind its last one."""
    found = []
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
        answer = await peer.ask(code, h.TopicQueue(topic, queue_id))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found.append(int(answer.ext["offset"]))
    return found[0], found[1]


async def pull_from(peer: RawPeer, topic: str, queue_id: int, offset: int) -> list[record.Record]:
    """Some records from an offset on, bodies checked against their CRC; none at the end."""
    header = h.PullMessage(
        consumer_group="raw",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=_SUBSCRIPTION_IN_HEADER,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    answer = await peer.ask(RequestCode.PULL_MESSAGE, header)
    if answer.code == ResponseCode.PULL_NOT_FOUND:
        return []
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark, offset)
    pulled = list(record.iter_decode(answer.body))
    assert pulled
    assert int(answer.ext["nextBeginOffset"]) == pulled[-1].queue_offset + 1
    return pulled


async def pull_queue(peer: RawPeer, topic: str, queue_id: int) -> list[record.Record]:
    """Every record that a queue holds."""
    records: list[record.Record] = []
    offset, end = await queue_range(peer, topic, queue_id)
    while offset < end:
        pulled = await pull_from(peer, topic, queue_id, offset)
        assert pulled, (offset, end)
        records += pulled
        offset = pulled[-1].queue_offset + 1
    return records


async def query_keys(
    peer: RawPeer, topic: str, keys: Sequence[str], *, in_flight: int = 32
) -> dict[str, list[record.Record]]:
    """What the index finds for each key, any time."""
    found: dict[str, list[record.Record]] = {}
    for at in range(0, len(keys), in_flight):
        part = keys[at : at + in_flight]
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(
                *(
                    peer.write(RequestCode.QUERY_MESSAGE, h.QueryMessage(topic, key, 64, 0, 2**62))
                    for key in part
                )
            )
        for key, answer in zip(part, answers, strict=True):
            known = answer.code == ResponseCode.SUCCESS
            found[key] = list(record.iter_decode(answer.body)) if known else []
    return found
