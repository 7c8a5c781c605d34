"""A whole broker on a free port with small files, and a raw client to it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cometmq.broker.app import Broker
from cometmq.broker.config import load
from cometmq.core.clock import SystemClock
from cometmq.message.record import Record, iter_decode
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import JSON, Head, encode_head
from cometmq.store.files import Buffer, PosixFiles
from tests.net.serving import RawClient

SMALL = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
PULL = RequestCode.PULL_MESSAGE


class FailingFiles(PosixFiles):
    """The real files, until told to fail writes or syncs of the log with an errno."""

    def __init__(self) -> None:
        self.write_errno = 0
        self.sync_errno = 0

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        if self.write_errno and any(data):  # zeros go where there is room already
            raise OSError(self.write_errno, "written to fail")
        super().pwrite(handle, data, offset)

    def datasync(self, handle: int) -> None:
        if self.sync_errno:
            raise OSError(self.sync_errno, "synced to fail")
        super().datasync(handle)


class BrokerClient(RawClient):
    """Sends and pulls as the Java client words it."""

    opaque = 0

    async def ask(
        self, code: int, body: bytes = b"", codec: int = JSON, **ext: str
    ) -> tuple[Head, bytes]:
        """One request and its answer."""
        self.post(code, body, codec, **ext)
        return await self.frame()

    def post(self, code: int, body: bytes = b"", codec: int = JSON, **ext: str) -> None:
        """One request, its answer left to be read."""
        self.opaque += 1
        head = encode_head(
            code=code, opaque=self.opaque, flag=0, ext=ext, codec=codec, body_bytes=len(body)
        )
        self.writer.write(head + body)

    async def send(self, body: bytes = b"body", *, code: int = SEND, **changes: str) -> Head:  # type: ignore[override]
        """Send one message or batch; ``changes`` are V2 fields."""
        head, _ = await self.ask(code, body, **send_fields(**changes))
        return head

    async def pull(self, offset: int = 0, **changes: str) -> tuple[Head, list[Record]]:
        """Pull from an offset; ``changes`` are header fields."""
        head, body = await self.ask(PULL, **pull_fields(offset, **changes))
        return head, list(iter_decode(body))


def send_fields(**changes: str) -> dict[str, Any]:
    """The V2 header of a plain send to queue 1 of topic "t"."""
    return {
        "a": "producers", "b": "t", "c": "TBW102", "d": "4", "e": "1", "f": "0",
        "g": "1700000000000", "h": "7", "i": "UNIQ_KEY\x01U1\x02WAIT\x01true\x02TAGS\x01red",
        "j": "0", "k": "false", "m": "false",
    } | changes  # fmt: skip


def pull_fields(offset: int, **changes: str) -> dict[str, Any]:
    """The header of a pull of everything from queue 1 of topic "t", not held."""
    return {
        "consumerGroup": "g", "topic": "t", "queueId": "1", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0", "subscription": "*", "expressionType": "TAG",
    } | changes  # fmt: skip


class RunningBroker:
    """A broker that serves, and clients that end with it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._clients: list[BrokerClient] = []

    async def connect(self) -> BrokerClient:
        client = BrokerClient(*await asyncio.open_connection("127.0.0.1", self.broker.port))
        self.add(client)
        return client

    def add(self, client: BrokerClient) -> None:
        """Let a client end with the broker."""
        self._clients.append(client)

    def close_clients(self) -> None:
        for client in self._clients:
            client.writer.close()


def make_broker(directory: Path, files: PosixFiles | None = None, **settings: str) -> Broker:
    """A broker that registers nowhere, on a free port."""
    values = {"storePathRootDir": str(directory), "listenPort": "0"} | SMALL | settings
    config, store_config, _ = load(values)
    return Broker(config, store_config, SystemClock(), files=files)


@asynccontextmanager
async def running_broker(
    directory: Path, files: PosixFiles | None = None, **settings: str
) -> AsyncIterator[RunningBroker]:
    """Run a broker until the block ends."""
    broker = make_broker(directory, files, **settings)
    await broker.start()
    running = RunningBroker(broker)
    try:
        yield running
    finally:
        running.close_clients()
        if isinstance(files, FailingFiles):
            files.write_errno = files.sync_errno = 0
        await broker.stop()


NO_SPACE = errno.ENOSPC
IO_ERROR = errno.EIO
