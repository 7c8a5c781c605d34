"""Every request code with fields that are missing, garbled or absurd: a code and a remark come
back, never an unexpected error, and the broker works on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from cometmq.broker.app import Broker
from cometmq.broker.config import load
from cometmq.core.clock import SystemClock
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import BINARY, JSON, decode_head, encode_head
from cometmq.protocol.registry import REGISTRY, CodeSpec, Side

SPECS = [spec for spec in REGISTRY.values() if Side.BROKER in spec.side]

NUMBERS = ("", "0", "1", "-1", "2147483647", "-2147483648", "9223372036854775807", "x", "1.5", " 7")
TEXTS = (
    "",
    "t",
    "g",
    "TBW102",
    "%RETRY%g",
    "SCHEDULE_TOPIC_XXXX",
    "a b",
    "../../etc",
    "x" * 300,
    "\x00\x01\x02",
    "KEYS\x01k\x02DELAY\x0199\x02",
    "TAGS\x01" + "y" * 40_000,
    "|| ||",
    "true",
    "日本",
)
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b'"x"',
    b"{",
    b"\xff\xfe\x00",
    b"[" * 5_000,
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}],"producerDataSet":[{}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"../g","subscriptionDataSet":[{}]}]}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","brokerName":"b","queueId":-1}]}',
    b'{"groupName":"g","retryQueueNums":-5,"retryMaxTimes":99999999999999999999}',
    b"brokerPermission=x\n",
    b"=\n",
    b"\x00\x00\x00\x10" * 8,
    b"\x7f\xff\xff\xff\xda\xa3\x20\xa7",
)


class Line:
    """One raw connection to a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.opaque = 0

    async def ask(
        self, code: int, ext: dict[str, str], body: bytes, codec: int
    ) -> tuple[int, str | None]:
        self.opaque += 1
        head = encode_head(
            code=code, opaque=self.opaque, flag=0, ext=ext, codec=codec, body_bytes=len(body)
        )
        self.writer.write(head + body)
        async with asyncio.timeout(60):
            while True:
                size = int.from_bytes(await self.reader.readexactly(4), "big")
                frame = await self.reader.readexactly(size)
                head_bytes = int.from_bytes(frame[1:4], "big")
                found = decode_head(frame[0], frame[4 : 4 + head_bytes])
                if found.flag & 1:  # the broker's own requests (40) are not answers
                    assert found.opaque == self.opaque
                    return found.code, found.remark


@asynccontextmanager
async def running_broker(directory: Path) -> AsyncIterator[Broker]:
    config, store_config, _ = load(
        {
            "listenPort": "0",
            "storePathRootDir": str(directory),
            "mappedFileSizeCommitLog": str(4 << 20),
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "1000",
        }
    )
    broker = Broker(config, store_config, SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def garbled(spec: CodeSpec, rng: random.Random) -> dict[str, str]:
    """Fields of a header, each sane, odd, of another kind, or left out."""
    ext: dict[str, str] = {}
    for info in structs.fields(spec.header):
        chance = rng.random()
        if chance < 0.08:
            continue
        is_number = "int" in str(info.type)
        pool = NUMBERS if is_number == (chance < 0.9) else TEXTS
        ext[info.encode_name] = rng.choice(pool)
    if "suspendTimeoutMillis" in ext:
        ext["suspendTimeoutMillis"] = "1"
    return ext


def check(code: int, remark: str | None, what: object) -> None:
    assert code in set(ResponseCode), what
    if code not in (ResponseCode.SUCCESS,):
        assert remark, what


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.code.name)
async def test_garbage_gets_a_code_and_a_remark(
    tmp_path: Path, spec: CodeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(int(spec.code))
    async with running_broker(tmp_path) as broker, connected(broker) as line:
        cases: list[tuple[dict[str, str], bytes]] = [({}, body) for body in BODIES]
        cases += [(garbled(spec, rng), rng.choice(BODIES)) for _ in range(120)]
        for ext, body in cases:
            codec = BINARY if rng.random() < 0.3 else JSON
            code, remark = await line.ask(spec.code, ext, body, codec)
            check(code, remark, (ext, body, code, remark))
        assert "handler failed" not in caplog.text
        assert "close callback failed" not in caplog.text
        code, _ = await line.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}, b"", JSON)
        assert code == ResponseCode.SUCCESS


async def test_codes_that_nobody_serves_are_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, connected(broker) as line:
        for unknown in (0, -1, 9, 106, 999, 32_767):
            code, remark = await line.ask(unknown, {}, b"", JSON)
            assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert remark is not None
            assert str(unknown) in remark
