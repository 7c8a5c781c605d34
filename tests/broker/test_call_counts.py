"""How many Python functions one request enters, and in how many modules: what a newcomer has to
read to follow it, and what it costs when it comes alone. The bounds only ever go down."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cometmq
from benchmarks.requests import ACCOUNT, Sink, write_rules
from cometmq.broker.replication import roles
from cometmq.net import tasks
from cometmq.net.peer import Peer
from cometmq.protocol.acl import Credentials, signed
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import JSON, encode_head
from tests.broker.replicated import group, hurry, master_of
from tests.broker.serving import RunningBroker, pull_fields, running_broker, send_fields
from tests.replication.pairs import until

PACKAGE = str(Path(cometmq.__file__).parent) + "/"
TASKS = tasks.__file__
#: Requests of which the one in the middle counts: something else may run beside one or two.
SAMPLES = 15
LIMIT_S = 10
ROOMY = {"mappedFileSizeCommitLog": str(1 << 24), "maxHashSlotNum": "5000", "maxIndexNum": "20000"}

# Plain Python serves each request by itself.
pytestmark = pytest.mark.compiled


@dataclass
class Calls:
    """The functions that were entered, in order, as "module.py:function"."""

    entered: list[str] = field(default_factory=list)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        # What is generated, as of a dataclass, has no file of its own.
        if event != "call" or not path.startswith((PACKAGE, "<")) or self.is_beside(frame):
            return
        self.entered.append(f"{path.removeprefix(PACKAGE)}:{frame.f_code.co_qualname}")

    @staticmethod
    def is_beside(frame: FrameType | None) -> bool:
        """Whether a task runs, which has nothing to do with the request."""
        while frame is not None:
            if frame.f_code.co_filename == TASKS:
                return True
            frame = frame.f_back
        return False

    @property
    def modules(self) -> set[str]:
        return {entered.partition(":")[0] for entered in self.entered}


class Answers(Sink):
    """Keeps what is written; nothing is counted from then on."""

    def write(self, data: Any) -> None:
        sys.setprofile(None)
        super().write(data)


class Client:
    """One connection to a broker, without a socket."""

    def __init__(self, running: RunningBroker, account: Credentials | None = None) -> None:
        self._account = account
        self._answered = asyncio.Event()
        self._sink = Answers(self._answered)
        self._peer: Peer = running.broker.server._new_peer()
        self._peer.connection_made(self._sink)
        self._opaque = 0

    def _frame(self, code: int, fields: dict[str, Any], body: bytes) -> bytes:
        self._opaque += 1
        if self._account is not None:
            fields |= signed(self._account, fields, body)
        head = encode_head(
            code=code, opaque=self._opaque, flag=0, ext=fields, codec=JSON, body_bytes=len(body)
        )
        return head + body

    def send(self) -> bytes:
        """The bytes of a plain send."""
        properties = f"UNIQ_KEY\x01{self._opaque:032X}\x02WAIT\x01true\x02TAGS\x01red"
        return self._frame(RequestCode.SEND_MESSAGE_V2, send_fields(i=properties), b"x" * 128)

    def pull(self) -> bytes:
        """The bytes of a pull of 32 messages."""
        return self._frame(RequestCode.PULL_MESSAGE, pull_fields(0), b"")

    async def ask(self, request: bytes, calls: Calls | None = None) -> bytes:
        """Bring a request and wait for its answer; ``calls`` hears of all that runs meanwhile."""
        self._answered.clear()
        self._sink.written.clear()
        sys.setprofile(calls)
        try:
            self._peer.data_received(request)
            async with asyncio.timeout(LIMIT_S):
                await self._answered.wait()
        finally:
            sys.setprofile(None)
        return bytes(self._sink.written)

    def close(self) -> None:
        self._peer.connection_lost(None)


@asynccontextmanager
async def connected(
    running: RunningBroker, account: Credentials | None = None
) -> AsyncIterator[Client]:
    client = Client(running, account)
    try:
        yield client
    finally:
        client.close()


async def measured(
    client: Client, request: Callable[[], bytes], is_right: Callable[[bytes], bool]
) -> Calls:
    """Return the calls of the one of several requests that made the fewest: what else goes on at
    the time only adds to them."""
    samples = []
    for _ in range(SAMPLES):
        calls = Calls()
        answer = await client.ask(request(), calls)
        assert is_right(answer), answer[:300]
        samples.append(calls)
    return min(samples, key=lambda calls: len(calls.entered))


def hold(what: str, calls: Calls, most: int, most_modules: int) -> None:
    """Say what was counted, and that it is within bounds."""
    modules = sorted(calls.modules)
    print(f"{what}: {len(calls.entered)} Python calls through {len(modules)} modules")
    assert 0 < len(calls.entered) <= most, "\n".join(calls.entered)
    assert len(modules) <= most_modules, "\n".join(modules)


def is_done(answer: bytes) -> bool:
    return answer.count(b'"code":0,') == 1


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn is so long, beside other work on this machine, that it is reported."""
    monkeypatch.setattr("cometmq.net.peer.TURN_NS", 1 << 40)
    monkeypatch.setattr("cometmq.net.peer.SHORT_NS", 1 << 40)
    monkeypatch.setattr("cometmq.broker.acknowledgement.SHORT_NS", 1 << 40)


async def test_a_send_and_a_pull_enter_few_functions(tmp_path: Path) -> None:
    async with running_broker(tmp_path, None, **ROOMY) as running, connected(running) as client:
        for _ in range(40):
            await client.ask(client.send())
        sent = await measured(client, client.send, is_done)
        await client.ask(client.pull())
        pulled = await measured(client, client.pull, lambda answer: answer.count(b"x" * 128) == 32)
    hold("a send", sent, 23, 12)
    hold("a pull of 32", pulled, 22, 12)


async def test_a_signed_send_and_a_signed_pull_enter_one_more_function(tmp_path: Path) -> None:
    write_rules(tmp_path)
    async with (
        running_broker(tmp_path, None, aclEnable="true", **ROOMY) as running,
        connected(running, ACCOUNT) as client,
    ):
        for _ in range(40):
            await client.ask(client.send())
        sent = await measured(client, client.send, is_done)
        await client.ask(client.pull())
        pulled = await measured(client, client.pull, lambda answer: answer.count(b"x" * 128) == 32)
    hold("a signed send", sent, 24, 13)
    hold("a signed pull of 32", pulled, 23, 13)


async def test_a_replicated_send_enters_few_functions_of_both_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(roles, "TABLES_INTERVAL_MS", 60_000)  # beside none of the sends
    async with group(tmp_path) as made:
        master = await made.start(0, brokerRole="SYNC_MASTER", **ROOMY)
        slave = await made.start(1, **ROOMY)
        await until(lambda: master_of(master).has_enough)
        async with connected(master) as client:
            for _ in range(40):
                await client.ask(client.send())
            stores = master.broker.store, slave.broker.store
            await until(lambda: stores[1].dispatched_offset == stores[0].written_offset)
            sent = await measured(client, client.send, is_done)
    hold("a replicated send", sent, 76, 20)


async def test_a_call_too_many_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    calls = Calls(["net/peer.py:Peer.data_received", "net/peer.py:Peer._turn"])
    hold("two calls", calls, 2, 1)
    assert "2 Python calls through 1 modules" in capsys.readouterr().out
    with pytest.raises(AssertionError, match=r"Peer\._turn"):
        hold("two calls", calls, 1, 1)
