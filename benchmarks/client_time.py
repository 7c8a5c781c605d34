"""What one send and one consumed message cost the client itself: processor time, no sockets.

    .venv/bin/python -m benchmarks.client_time [--rounds 5] [--beside SRC] [--case NAME] [--profile]

A client's connections have a transport that answers in memory what a name server and a broker
would; making answers is not counted. ``produce`` keeps 512 single sends of 128 B in flight, each
awaited by a task of its own, ``signed`` the same with an account, ``linger`` the same in automatic
batches; ``soon`` keeps as many by one task, ``many`` sends 512 a call. ``consume`` runs a listener
that counts over messages of 128 B, 32 a pull; ``read`` has it look at each. With ``--beside`` each
round also measures the package in that folder (the `src` of another worktree), in turns. Prints one
JSON line a case: microseconds a message, the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.client import Client
from cometmq.message.batch import walk
from cometmq.message.ids import pack_host
from cometmq.message.model import Message
from cometmq.message.record import Record, pack
from cometmq.net import client as connections
from cometmq.net.eventloop import run
from cometmq.protocol.bodies import BrokerData, ConsumerIds, QueueData, TopicRoute
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.connection import Connection
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import Request, encode_response, lengths

if TYPE_CHECKING:
    from cometmq.client.consumer.received import ReceivedMessage

HERE: Final = Path(__file__).resolve().parent.parent
BODY: Final = bytes(128)
IN_FLIGHT: Final = 512
SENDS: Final = 20_000
CONSUMED: Final = 64_000
#: Longer than a busy machine needs.
TIMEOUT_MS: Final = 100_000
PULLED: Final = 32
QUEUES: Final = 4
HOST: Final = pack_host("127.0.0.1", 10911)
MESSAGE_ID: Final = "7F00000100002A9F%016X"
PROPERTIES: Final = b"TAGS\x01tag\x02KEYS\x01key\x02WAIT\x01true\x02UNIQ_KEY\x01" + b"7F000001" * 4
SEND_ANSWER: Final = (
    '{"code":0,"extFields":{"msgId":"%s","queueId":"%d","queueOffset":"%d",'
    '"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"PYTHON","opaque":%d,'
    '"serializeTypeCurrentRPC":"JSON","version":407}'
)
PULL_ANSWER: Final = (
    '{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"0",'
    '"maxOffset":"1000000000"},"flag":1,"language":"PYTHON","opaque":%d,'
    '"serializeTypeCurrentRPC":"JSON","version":407}'
)


def _framed(header: str, body: bytes = b"") -> bytes:
    return lengths(len(header), len(body)) + header.encode() + body


class Answering:
    """A transport whose other side answers at once, in memory."""

    def __init__(self, client: Client) -> None:
        self.client = client
        #: Nanoseconds that answers took.
        self.spent_ns = 0
        self.sent = 0
        self.link: Any
        self.route: TopicRoute
        self._connection: Connection[None] = Connection()
        self._bodies: dict[tuple[int, int], bytes] = {}

    def write(self, data: bytes) -> None:
        begun = time.process_time_ns()
        self._connection.receive_data(bytes(data))
        answers: list[bytes] = []
        while self._connection.has_more:
            for request in self._connection.next_events(1024):
                assert isinstance(request, Request)
                answers.append(self._answer(request))
        joined = b"".join(answers)
        asyncio.get_running_loop().call_soon(self.link.data_received, joined)
        self.spent_ns += time.process_time_ns() - begun

    def _answer(self, request: Request[Any]) -> bytes:
        header = request.header
        if request.code == Code.SEND_MESSAGE_V2:
            self.sent += 1
            message_id = MESSAGE_ID % (self.sent * 300)
            return _framed(SEND_ANSWER % (message_id, header.queue_id, self.sent, request.opaque))
        if request.code == Code.SEND_BATCH_MESSAGE:
            count = len(walk(request.body))
            first, self.sent = self.sent, self.sent + count
            ids = ",".join([MESSAGE_ID % (number * 300) for number in range(first, self.sent)])
            return _framed(SEND_ANSWER % (ids, header.queue_id, first, request.opaque))
        if request.code == Code.PULL_MESSAGE:
            answer = PULL_ANSWER % (header.queue_offset + PULLED, request.opaque)
            return _framed(answer, self._pulled(header.queue_id, header.queue_offset))
        ext, body = {"offset": "0"}, b""
        if request.code == Code.GET_ROUTEINFO_BY_TOPIC:
            body = encode_json(self.route)
        elif request.code == Code.GET_CONSUMER_LIST_BY_GROUP:
            body = encode_json(ConsumerIds([self.client.client_id]))
        return encode_response(request, 0, ext=ext, body_bytes=len(body)) + body

    def _pulled(self, queue_id: int, offset: int) -> bytes:
        """The records of a pull; only their offsets differ from pull to pull."""
        body = self._bodies.get((queue_id, 0))
        if body is None:
            body = self._bodies[queue_id, 0] = b"".join(
                pack(
                    Record(
                        0, 0, queue_id, 0, 0, number * 300, 0, 1_700_000_000_000, HOST,
                        1_700_000_000_001, HOST, 0, 0, BODY, "load", PROPERTIES,
                    )
                )
                for number in range(PULLED)
            )  # fmt: skip
        size = len(body) // PULLED
        found = bytearray(body)
        for number in range(PULLED):
            found[number * size + 20 : number * size + 28] = (offset + number).to_bytes(8, "big")
        return bytes(found)

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing waits here."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self.link.connection_lost, None)

    abort = close


def _connect(client: Client) -> Answering:
    session = client.session
    sink = Answering(client)
    make = getattr(connections, "Link", None) or connections._Link  # type: ignore[attr-defined]
    link = sink.link = make(session.remoting, "127.0.0.1:10911")
    link.connection_made(sink)
    for address in (link.address, *client.config.name_servers):
        session.remoting._links[address] = link
    brokers = [BrokerData("broker-a", {"0": link.address}, "c")]
    sink.route = TopicRoute(brokers, [QueueData("broker-a", QUEUES, QUEUES, 6)], {}, None)
    session._put("load", sink.route)
    return sink


async def produce(**settings: Any) -> float:
    """Microseconds a send."""
    left = 0

    async def send() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.send("load", BODY)

    async with Client("127.0.0.1:1", send_timeout_ms=TIMEOUT_MS, **settings) as client:
        sink = _connect(client)
        used = 0.0
        for count in (SENDS // 4, SENDS):
            left = count
            sink.spent_ns, begun = 0, time.process_time_ns()
            await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
            used = (time.process_time_ns() - begun - sink.spent_ns) / 1e3 / SENDS
    return used


async def signed() -> float:
    """Microseconds a send that is signed."""
    # Imported late: a package to compare with may be older.
    from cometmq.protocol.acl import Credentials

    return await produce(credentials=Credentials("shop-key", "a-long-secret"))


async def linger() -> float:
    """Microseconds a send that leaves in an automatic batch."""
    return await produce(linger_ms=1)


async def soon() -> float:
    """Microseconds a message that one task hands over."""
    waiting: deque[asyncio.Future[Any]] = deque()

    async def work(client: Client, count: int) -> None:
        for _ in range(count):
            waiting.append(await client.send_soon("load", BODY))
            if len(waiting) >= IN_FLIGHT:
                await waiting.popleft()
        while waiting:
            await waiting.popleft()

    return await _by_one_task(work)


async def many() -> float:
    """Microseconds a message of one call for 512; making the Message objects is counted."""

    async def work(client: Client, count: int) -> None:
        for _ in range(0, count, IN_FLIGHT):
            await client.send_many([Message("load", BODY) for _ in range(IN_FLIGHT)])

    return await _by_one_task(work)


async def _by_one_task(work: Callable[[Client, int], Coroutine[Any, Any, None]]) -> float:
    async with Client("127.0.0.1:1", send_timeout_ms=TIMEOUT_MS) as client:
        sink = _connect(client)
        await work(client, SENDS // 4)
        sink.spent_ns, begun = 0, time.process_time_ns()
        count = 4 * SENDS // IN_FLIGHT * IN_FLIGHT
        await work(client, count)
        return (time.process_time_ns() - begun - sink.spent_ns) / 1e3 / count


async def consume() -> float:
    """Microseconds a message that a listener only counts."""
    return await _consume(lambda message: None)


async def read() -> float:
    """Microseconds a message of which a listener reads the body, the tag and the id."""
    return await _consume(lambda message: (message.body, message.tag, message.message_id))


async def _consume(look: Callable[[ReceivedMessage], object]) -> float:
    heard = 0
    is_over = asyncio.Event()
    begun = (0, 0)

    def listen(message: ReceivedMessage) -> None:
        nonlocal heard, begun
        look(message)
        heard += 1
        if heard == CONSUMED // 4:
            begun = (time.process_time_ns(), sink.spent_ns)
        if heard == CONSUMED + CONSUMED // 4:
            is_over.set()

    async with Client("127.0.0.1:1", send_timeout_ms=TIMEOUT_MS) as client:
        sink = _connect(client)
        subscription = client.subscribe("load", group="listeners", start="first")
        listening = asyncio.create_task(subscription.run(listen))
        await is_over.wait()
        spent_ns = sink.spent_ns - begun[1]
        used = (time.process_time_ns() - begun[0] - spent_ns) / 1e3 / (heard - CONSUMED // 4)
        await subscription.close()
        await listening
    return used


CASES: Final = {
    "produce": produce,
    "signed": signed,
    "linger": linger,
    "soon": soon,
    "many": many,
    "consume": consume,
    "read": read,
}


def _measure(source: Path, case: str) -> float:
    command = [sys.executable, "-m", "benchmarks.client_time", "--once", case]
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(
        command, cwd=HERE, env=environment, check=True, stdout=subprocess.PIPE, timeout=300
    )
    return float(done.stdout)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=tuple(CASES), action="append")
    parser.add_argument("--beside", type=Path, help="another worktree's src")
    parser.add_argument("--once", choices=tuple(CASES), help="measure here, once")
    parser.add_argument("--profile", choices=tuple(CASES), help="show where the time goes")
    words = parser.parse_args()
    if words.profile:
        profile = cProfile.Profile()
        profile.runcall(run, CASES[words.profile]())
        profile.print_stats("tottime")
    elif words.once:
        print(run(CASES[words.once]()))
    else:
        sources = {"here": HERE / "src"}
        if words.beside:
            sources["beside"] = words.beside.resolve()
        for case in words.case or CASES:
            found: dict[str, list[float]] = {name: [] for name in sources}
            for _ in range(words.rounds):
                for name, source in sources.items():
                    found[name].append(_measure(source, case))
            us = {name: round(median(each), 2) for name, each in found.items()}
            print(json.dumps({"case": case, "us": us}), flush=True)


if __name__ == "__main__":
    main()
