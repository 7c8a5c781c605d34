"""Sends many timed messages to a real broker, and tells what of them was delivered."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from cometmq.core.clock import SystemClock
from cometmq.message import properties as props
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.operation.raw import Lost, Pending, RawPeer, create_topic, pull_queue, send_header

TOPIC = "timed"
QUEUES = 4
_A_WRITE = 256
_IN_FLIGHT = 1_024
_TURN_MS = 20
_CLOCK = SystemClock()

#: When the message of a number is due, ms, given the time of the send.
Due = Callable[[int, int], int]


class Timed:
    """What was sent to one broker's topic, over kills and restarts. Keys are numbers as text."""

    def __init__(self, body_bytes: int = 0) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.unanswered: set[bytes] = set()
        self._padding = bytes(body_bytes)
        self._next = 0

    async def create_topic(self, address: str) -> None:
        """Make the topic."""
        peer = await RawPeer.connect(address)
        await create_topic(peer, TOPIC, QUEUES)
        await peer.close()

    async def send(self, address: str, count: int, due: Due) -> None:
        """Send messages, until all are answered or the connection is lost."""
        peer = await RawPeer.connect(address)
        waiting: list[tuple[bytes, int, Pending]] = []
        for size in _parts(count):
            now_ms = _CLOCK.wall_ms()
            made = [self._make(now_ms, due) for _ in range(size)]
            if peer.closed.done():
                break
            answers = peer.write_many(
                RequestCode.SEND_MESSAGE_V2,
                [(header, key + self._padding) for key, _, header in made],
            )
            pairs = zip(made, answers, strict=True)
            waiting += [(key, due_ms, answer) for (key, due_ms, _), answer in pairs]
            if len(waiting) > _IN_FLIGHT:
                await self._take(waiting[:size])
                del waiting[:size]
        await self._take(waiting)
        if not peer.closed.done():
            await peer.close()

    def _make(self, now_ms: int, due: Due) -> tuple[bytes, int, h.SendMessageV2]:
        number, self._next = self._next, self._next + 1
        due_ms = due(number, now_ms)
        key = b"%09d" % number
        properties = {props.UNIQ_KEY: key.decode(), props.TIMER_DELIVER_MS: str(due_ms)}
        text = props.encode_text(properties)
        return key, due_ms, send_header(TOPIC, number % QUEUES, text, now_ms)

    async def _take(self, waiting: list[tuple[bytes, int, Pending]]) -> None:
        for key, due_ms, answer in waiting:
            try:
                response = await answer
            except Lost:
                self.unanswered.add(key)
                continue
            assert response.code == ResponseCode.SUCCESS, response.remark
            self.acknowledged[key] = due_ms

    def due_by(self, moment_ms: int) -> set[bytes]:
        """The acknowledged messages that are due by a moment."""
        return {key for key, due_ms in self.acknowledged.items() if due_ms <= moment_ms}

    def check(self, delivered: dict[bytes, int], moment_ms: int) -> None:
        """Assert that exactly what was due by a moment was delivered, and nothing twice.

        ``delivered`` is what :func:`deliveries` gave at that moment or later.
        """
        missing = self.due_by(moment_ms) - delivered.keys()
        assert not missing, f"{len(missing)} lost, such as {sorted(missing)[:3]}"
        # All that a turn of the broker stores has the time at which the turn began.
        early_ms = max(self.acknowledged.get(key, 0) - at for key, at in delivered.items())
        assert early_ms <= _TURN_MS, f"early by {early_ms} ms"
        strange = delivered.keys() - self.acknowledged.keys() - self.unanswered
        assert not strange


async def deliveries(address: str) -> dict[bytes, int]:
    """When each delivered message was stored in its topic, by key. Asserts that none is there
    twice."""
    peer = await RawPeer.connect(address)
    found: Counter[bytes] = Counter()
    stored: dict[bytes, int] = {}
    for queue_id in range(QUEUES):
        for record in await pull_queue(peer, TOPIC, queue_id):
            key = record.body[:9]
            found[key] += 1
            stored[key] = record.store_ms
    await peer.close()
    twice = [key for key, count in found.items() if count > 1]
    assert not twice, f"{len(twice)} delivered twice, such as {twice[:3]}"
    return stored


async def runtime(address: str) -> dict[str, str]:
    """The broker's numbers about itself."""
    import msgspec

    peer = await RawPeer.connect(address)
    answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO, h.NoFields())
    await peer.close()
    table = msgspec.json.decode(answer.body)["table"]
    return {str(key): str(value) for key, value in table.items()}


async def wait_for(address: str, expected: set[bytes], limit_s: float) -> dict[bytes, int]:
    """Wait until all these keys are delivered; gives all deliveries then."""
    found: dict[bytes, int] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not expected <= found.keys():
                found = await deliveries(address)
                await asyncio.sleep(0.05)
    return found


def _parts(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, _A_WRITE)
        count -= _A_WRITE
