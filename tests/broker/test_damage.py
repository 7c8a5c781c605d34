"""A damaged store at a broker's start: the operator is told, decides, and nobody skips messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt
from tests.broker.serving import running_broker

COUNT = 20


async def damaged(root: Path) -> int:
    """A store with messages, all consumed, of which one is damaged in a log that will be read as a
    whole; gives its number."""
    async with running_broker(root) as running:
        client = await running.connect()
        for number in range(COUNT):
            await client.send(b"%d" % number)
        running.broker.consumers.offsets.commit("g", "t", 1, COUNT)
    log = root / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    number = raw.index(b"\0\0\0\x02" + b"12") + 4
    raw[number] ^= 1
    log.write_bytes(raw)
    shutil.rmtree(root / "consumequeue")
    return 12


async def test_it_says_where_and_what_can_be_done(tmp_path: Path) -> None:
    await damaged(tmp_path)
    with pytest.raises(StoreCorrupt, match="body CRC differs") as caught:
        async with running_broker(tmp_path):
            pass
    assert caught.value.path == str(tmp_path / "commitlog" / f"{0:020d}")
    assert f"cometmq store repair {tmp_path} --damage skip --yes" in str(caught.value)
    assert "damagePolicy=truncate" in str(caught.value)


async def test_offsets_beyond_the_end_are_set_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the group would pass by whatever gets these offsets next."""
    left = await damaged(tmp_path)
    async with running_broker(tmp_path, damagePolicy="truncate") as running:
        assert running.broker.consumers.offsets.query("g", "t", 1) == left
        client = await running.connect()
        assert (await client.send(b"next")).ext["queueOffset"] == str(left)
        _, records = await client.pull(offset=left)
        assert [record.body for record in records] == [b"next"]
    assert f"consumer offset clamped group=g topic=t queue=1 from={COUNT} to={left}" in caplog.text


async def test_what_was_left_out_is_stepped_over(tmp_path: Path) -> None:
    left = await damaged(tmp_path)
    async with running_broker(tmp_path, damagePolicy="skip") as running:
        client = await running.connect()
        bodies: list[bytes] = []
        offset = 0
        while offset < COUNT:
            reply, records = await client.pull(offset=offset)
            bodies += [record.body for record in records]
            offset = int(reply.ext["nextBeginOffset"])
        assert bodies == [b"%d" % number for number in range(COUNT) if number != left]
        assert (await client.send(b"next")).ext["queueOffset"] == str(COUNT)
        assert running.broker.consumers.offsets.query("g", "t", 1) == COUNT
