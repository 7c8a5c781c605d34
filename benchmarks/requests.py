"""What a request costs the broker's loop itself: the processor time of serving it, no sockets.

    .venv/bin/python -m benchmarks.requests [--rounds 300] [--signed]

A whole broker serves connections whose transports keep what is written to them. In each round every
connection brings its requests at once, and the round ends with the last answer. Prints one JSON
line a case: microseconds a request, or a message of a batch, the lower quartile of the rounds.
With --signed the broker has accounts, and every request is signed; signing is not counted.
Beside other work it keeps within 2 or 3 %, where rates over sockets do not: for comparing two
versions of the program, run them by turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.message import batch
from cometmq.net.eventloop import run
from cometmq.protocol.acl import Credentials, signed
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import JSON, encode_head
from tests.broker.serving import running_broker, send_fields

if TYPE_CHECKING:
    from cometmq.net.peer import Peer
    from cometmq.net.server import Server

CONNECTIONS = 8
IN_FLIGHT = 32
#: Further shapes of single sends: connections, and requests in flight on each.
SHAPES = ((1, 1), (64, 1), (8, 64))
#: Minimum number of requests in a round: a smaller set is sent several times.
ROUND_REQUESTS = 64
#: Rounds before those that count.
WARM_UP = 10
ROUND_LIMIT_S = 10
BODY = b"x" * 128
#: In the form of Java's clients.
PROPERTIES = "UNIQ_KEY\x01%032X\x02%sWAIT\x01true\x02TAGS\x01tag"
#: The properties of the messages in a batch.
OWN_PROPERTIES = b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02TAGS\x01tag"
BATCH_MESSAGES = 64
PREPARED = "TRAN_MSG\x01true\x02PGROUP\x01load\x02"
PLACE = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})".*?"queueOffset":"(\d+)"')
ACCOUNT = Credentials("load-key", "secret-of-load")
#: The account's permissions are checked: an administrator's would not be.
RULES = """\
accounts:
- accessKey: load-key
  secretKey: secret-of-load
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
STORE: dict[str, Any] = {
    "mappedFileSizeCommitLog": str(1 << 28),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}


class Sink(asyncio.Transport):
    """A transport that collects all writes, and always has room."""

    def __init__(self, arrived: asyncio.Event) -> None:
        super().__init__()
        self._arrived = arrived
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data
        self._arrived.set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Load:
    """Connections that send the same kind of request at the same time."""

    def __init__(
        self,
        server: Server,
        connections: int = CONNECTIONS,
        in_flight: int = IN_FLIGHT,
        *,
        account: Credentials | None = None,
    ) -> None:
        self._account = account
        self._in_flight = in_flight
        self._arrived = asyncio.Event()
        self._opaque = 0
        self._peers: list[tuple[Peer, Sink]] = []
        for _ in range(connections):
            peer, sink = server._new_peer(), Sink(self._arrived)
            peer.connection_made(sink)
            self._peers.append((peer, sink))

    def close(self) -> None:
        """Close the connections on the broker's side."""
        for peer, _ in self._peers:
            peer.connection_lost(None)

    async def round(self, frames: Callable[[int, int], bytes]) -> tuple[float, list[bytes]]:
        """Serve ``frames(connection, number)`` of every connection.

        Return the microseconds of one request, and the responses of each connection.
        """
        return await self.serve(self.data(frames))

    def data(self, frames: Callable[[int, int], bytes]) -> list[bytes]:
        """Return the bytes that every connection sends in a round."""
        return [
            b"".join([frames(at, number) for number in range(self._in_flight)])
            for at in range(len(self._peers))
        ]

    async def serve(self, data: Sequence[bytes]) -> tuple[float, list[bytes]]:
        """Serve the bytes that :meth:`data` returned. The result is that of :meth:`round`."""
        begin_ns = time.process_time_ns()
        for (peer, _), received in zip(self._peers, data, strict=True):
            peer.data_received(received)
        async with asyncio.timeout(ROUND_LIMIT_S):
            await self._all_answered()
        took_ns = time.process_time_ns() - begin_ns
        answers = [bytes(sink.written) for _, sink in self._peers]
        for answer, (_, sink) in zip(answers, self._peers, strict=True):
            if answer.count(b'"code":0,') != self._in_flight:
                raise SystemExit(f"refused: {answer[:300]!r}")
            sink.written.clear()
        return took_ns / 1_000 / self._in_flight / len(self._peers), answers

    async def sends(self) -> float:
        """Serve single sends. Return the microseconds of one."""
        times = max(1, ROUND_REQUESTS // self._in_flight // len(self._peers))
        frames = self.send("single")
        return sum([(await self.round(frames))[0] for _ in range(times)]) / times

    async def _all_answered(self) -> None:
        for _, sink in self._peers:
            while sink.written.count(b'"flag":1') < self._in_flight:
                self._arrived.clear()
                await self._arrived.wait()

    def send(self, topic: str, asked: str = "") -> Callable[[int, int], bytes]:
        """Return the frames of single sends to 8 queues."""

        def frame(_: int, number: int) -> bytes:
            self._opaque += 1
            text = PROPERTIES % (self._opaque, asked)
            fields = send_fields(a="load", b=topic, d="8", e=str(number % 8), i=text)
            return self._frame(RequestCode.SEND_MESSAGE_V2, fields, BODY)

        return frame

    def batch(self, topic: str) -> Callable[[int, int], bytes]:
        """Return the frames of batches to 8 queues."""

        def frame(_: int, number: int) -> bytes:
            self._opaque += 1
            first = self._opaque * BATCH_MESSAGES
            body = batch.pack(
                (0, BODY, OWN_PROPERTIES % each) for each in range(first, first + BATCH_MESSAGES)
            )
            fields = send_fields(a="load", b=topic, d="8", e=str(number % 8), i="", m="true")
            return self._frame(RequestCode.SEND_BATCH_MESSAGE, fields, body)

        return frame

    def commit(self, halves: Sequence[bytes]) -> Callable[[int, int], bytes]:
        """Return the frames that commit the half messages of these responses."""
        places = [PLACE.findall(answer) for answer in halves]

        def frame(at: int, number: int) -> bytes:
            self._opaque += 1
            physical, half = places[at][number]
            fields = {
                "commitLogOffset": str(int(physical, 16)), "commitOrRollback": "8",
                "fromTransactionCheck": "false", "msgId": "0" * 32, "producerGroup": "load",
                "tranStateTableOffset": half.decode(), "transactionId": "0" * 32,
            }  # fmt: skip
            return self._frame(RequestCode.END_TRANSACTION, fields, b"")

        return frame

    def _frame(self, code: int, fields: dict[str, str], body: bytes) -> bytes:
        if self._account is not None:
            fields |= signed(self._account, fields, body)
        head = encode_head(
            code=code, opaque=self._opaque, flag=0, ext=fields, codec=JSON, body_bytes=len(body)
        )
        return head + body


def write_rules(home: Path) -> None:
    """Write the accounts of a broker whose home it is."""
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(RULES)


async def measure(rounds: int, account: Credentials | None) -> dict[str, float]:
    """Return microseconds per request, by case; with an account, they are signed."""
    cases = "single send", "half message", "commit", "message of a batch"
    shapes = [f"single send, {connections} x {depth}" for connections, depth in SHAPES]
    found: dict[str, list[float]] = {case: [] for case in (*cases, *shapes)}
    with tempfile.TemporaryDirectory(prefix="cometmq-requests-") as home:
        settings = dict(STORE)
        if account is not None:
            write_rules(Path(home))
            settings["aclEnable"] = "true"
        async with running_broker(Path(home), **settings) as running:
            server = running.broker.server
            load = Load(server, account=account)
            others = [Load(server, *shape, account=account) for shape in SHAPES]
            for _ in range(WARM_UP + rounds):
                sent_us, _ = await load.round(load.send("single"))
                half_us, halves = await load.round(load.send("transactions", PREPARED))
                commit_us, _ = await load.round(load.commit(halves))
                batch_us, _ = await load.round(load.batch("batches"))
                each_us = batch_us / BATCH_MESSAGES
                shaped = [await each.sends() for each in others]
                times = sent_us, half_us, commit_us, each_us, *shaped
                for case, took_us in zip(found, times, strict=True):
                    found[case].append(took_us)
            for each in (load, *others):
                each.close()
    return {case: sorted(each[WARM_UP:])[rounds // 4] for case, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--signed", action="store_true")
    options = parser.parse_args()
    account = ACCOUNT if options.signed else None
    for case, took_us in run(measure(max(options.rounds, 1), account)).items():
        print(json.dumps({"case": case, "us": round(took_us, 3)}))


if __name__ == "__main__":
    main()
