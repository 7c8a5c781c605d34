"""Slaves that copy a master over real sockets: late, killed, ahead, apart; whether two logs are the
same as far as both go.
"""

import asyncio
import errno
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from cometmq.net.outgoing import ClientTls, TlsOptions
from cometmq.net.tls import ClientAuth, ServerTls
from cometmq.replication import slave as slave_module
from cometmq.replication.master import MasterSettings
from cometmq.replication.slave import (
    OVERLAP_BYTES,
    LogsDiffer,
    Overlap,
    Unwelcome,
    first_difference,
)
from cometmq.replication.transfer import REPORT, TRANSFER
from cometmq.store.config import FlushDiskType
from tests.net.serving import tls_settings
from tests.net.test_outgoing import client_files
from tests.replication.pairs import assert_same, pair, until, until_copied
from tests.store.faults import FailingFiles
from tests.store.stores import copied, fill, log_of


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow on one another."""
    monkeypatch.setattr(slave_module, "RETRY_MS", 10)


async def test_a_log_is_copied_while_it_grows(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master()
        fill(master.store, 100)
        slave = made.slave(master)
        for turn in range(20):
            fill(master.store, 20, first=100 + 20 * turn)
            await asyncio.sleep(0)
        await until_copied(master, slave)
        assert_same(master.store, slave.store)
        assert slave.slave is not None
        assert slave.slave.is_connected
        assert master.master is not None
        await until(lambda: master.master.reached == master.store.written_offset)  # type: ignore[union-attr]


async def test_what_a_sync_slave_reports_is_on_its_device(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master(settings=MasterSettings(copies=2))
        slave = made.slave(master, flush_disk_type=FlushDiskType.SYNC_FLUSH)
        acked: list[tuple[int, int]] = []
        assert master.master is not None
        master.master.on_reached.append(
            lambda offset: acked.append((offset, slave.store.durable_offset))
        )
        for turn in range(10):
            fill(master.store, 10, first=10 * turn)
            await asyncio.sleep(0.001)
        await until(lambda: bool(acked) and acked[-1][0] == master.store.written_offset)
        assert all(offset <= durable for offset, durable in acked)
        assert_same(master.store, slave.store)


async def test_a_slave_goes_on_after_breaks_on_both_sides(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with pair(tmp_path) as made:
        master = await made.master()
        addresses = [master.address]
        slave = made.slave(lambda: addresses[-1])
        for turn in range(12):
            fill(master.store, 40, first=40 * turn)
            await asyncio.sleep(chance.random() * 0.02)
            if turn % 3 == 1:
                await made.close(master)
                master = await made.master()
                addresses.append(master.address)
            elif turn % 3 == 2:
                await made.close(slave)
                slave = made.slave(lambda: addresses[-1])
        await until_copied(master, slave)
        assert_same(master.store, slave.store)


async def test_a_slave_that_is_ahead_waits_and_says_so_once_the_logs_part(tmp_path: Path) -> None:
    """The master lost its tail in a power cut, and went on."""
    async with pair(tmp_path) as made:
        master = await made.master()
        slave = made.slave(lambda: master.address)
        fill(master.store, 50)
        await until_copied(master, slave)
        common = slave.store.written_offset
        await made.close(slave)
        await made.close(master)
        ahead = made.open("slave")
        fill(ahead.store, 20, first=1_000)
        end = ahead.store.written_offset
        await made.close(ahead)
        master = await made.master()
        slave = made.slave(lambda: master.address)
        fill(master.store, 100, first=50)
        assert slave.slave is not None
        await until(lambda: isinstance(slave.slave.problem, LogsDiffer))  # type: ignore[union-attr]
        problem = slave.slave.problem
        assert isinstance(problem, LogsDiffer)
        assert common <= problem.offset < common + 100
        assert problem.end == slave.store.written_offset == end


@pytest.mark.parametrize("overlap_bytes", [64 << 10, 100])
async def test_a_master_whose_log_ends_before_that_of_its_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap_bytes: int
) -> None:
    """It lost its tail, and nothing was written since; by much more than a slave asks for, too."""
    monkeypatch.setattr("cometmq.replication.slave.OVERLAP_BYTES", overlap_bytes)
    monkeypatch.setattr("cometmq.replication.transfer.HEARTBEAT_MS", 5)
    monkeypatch.setattr("cometmq.replication.master._TICK_MS", 10)
    async with pair(tmp_path) as made:
        master = await made.master()
        fill(master.store, 50)
        common = master.store.written_offset
        copied(tmp_path / "master", "slave")
        ahead = made.open("slave")
        fill(ahead.store, 90, first=1_000)
        end = ahead.store.written_offset
        await made.close(ahead)
        slave = made.slave(master)
        assert slave.slave is not None
        differing: list[LogsDiffer] = []
        slave.slave.on_differ = differing.append
        await until(lambda: bool(differing))
        problem = differing[0]
        assert (problem.offset, problem.end, problem.is_shorter) == (common, end, True)
        assert slave.store.written_offset == end


async def test_a_master_without_a_log_is_no_reason_to_cut(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master()
        filled = made.open("slave")
        fill(filled.store, 50)
        await made.close(filled)
        slave = made.slave(master)
        assert slave.slave is not None
        await until(lambda: slave.slave.problem is not None)  # type: ignore[union-attr]
        assert isinstance(slave.slave.problem, Unwelcome)
        assert "slave_refused" in str(slave.slave.problem)


async def test_logs_that_part_long_ago_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.replication.slave.OVERLAP_BYTES", 100)
    async with pair(tmp_path) as made:
        other = made.open("slave")
        fill(other.store, 10)
        common = other.store.written_offset
        await made.close(other)
        copied(tmp_path / "slave", "master")
        other = made.open("slave")
        fill(other.store, 300, first=500)
        await made.close(other)
        master = await made.master()
        fill(master.store, 400, first=900)
        slave = made.slave(master)
        assert slave.slave is not None
        await until(lambda: isinstance(slave.slave.problem, LogsDiffer))  # type: ignore[union-attr]
        problem = slave.slave.problem
        assert isinstance(problem, LogsDiffer)
        assert common <= problem.offset < common + 200


async def test_a_slave_with_a_full_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master()
        slave = made.slave(master)
        fill(master.store, 30)
        await until_copied(master, slave)
        files = FailingFiles()
        files.failing["allocate"] = errno.ENOSPC
        slave.store.log.segments._files = files
        fill(master.store, 300, first=30)
        assert slave.slave is not None
        await until(lambda: slave.slave.problem is not None)  # type: ignore[union-attr]
        files.failing.clear()
        await until_copied(master, slave)
        assert_same(master.store, slave.store)


class Relay:
    """Stands between a slave and its master. Changes the byte at an offset of what the master
    sends first; ``reports`` are what the slave told over that connection."""

    def __init__(self, master: str, changed: int) -> None:
        self._host, self._port = master.split(":")
        self._changed = changed
        self.reports: list[int] = []
        self.connections = 0
        self.address = ""

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_master = await asyncio.open_connection(self._host, int(self._port))
        self.connections += 1
        await asyncio.gather(
            self._bytes_to_slave(theirs, writer, self._changed),
            self._reports_to_master(reader, to_master, is_first=self.connections == 1),
        )

    async def _bytes_to_slave(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: int
    ) -> None:
        self._changed, at = -1, 0
        while data := bytearray(await reader.read(1 << 16)):
            if at <= changed < at + len(data):
                data[changed - at] ^= 0x40
            at += len(data)
            writer.write(data)
        writer.close()

    async def _reports_to_master(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_first: bool
    ) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while data := await reader.readexactly(REPORT.size):
                if is_first:
                    self.reports += REPORT.unpack(data)
                writer.write(data)
        writer.close()


async def test_a_bad_record_is_never_reported_and_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as made:
        master = await made.master(settings=MasterSettings(transfer_bytes=1 << 20))
        fill(master.store, 3_000)
        records = [(found.physical_offset, found.size_bytes) for found in log_of(master.store)]
        bad = next(at for at, size in records if at > 200_000 and size > 200)
        transfers = 1 + bad // master.store.log.segments.file_bytes
        async with Relay(master.address, bad + 120 + transfers * TRANSFER.size) as relay:
            slave = made.slave(lambda: relay.address)
            await until_copied(master, slave)
            assert relay.connections == 2
            assert max(relay.reports) <= bad
            assert f"bytes received for offset {bad} are not a log" in caplog.text
            assert_same(master.store, slave.store)
            await made.close(slave)
            await made.close(master)


def test_a_slave_asks_for_a_little_of_what_it_has() -> None:
    assert Overlap(0, 10 << 20).begin == (10 << 20) - OVERLAP_BYTES
    assert Overlap(1 << 20, (1 << 20) + 100).begin == 1 << 20


def test_an_empty_slave_says_so_and_no_other_does() -> None:
    assert Overlap(0, 0).begin == 0
    assert Overlap(0, 100).begin == 1


def test_each_retry_goes_further_back_until_all_was_asked_for() -> None:
    overlap = Overlap(1_000, 10 << 20)
    begins = [overlap.begin]
    while overlap.retry():
        begins.append(overlap.begin)
    assert begins == sorted(begins, reverse=True)
    assert begins[-1] == 1_000
    assert len(begins) < 5


def test_the_first_difference_is_found() -> None:
    chance = random.Random(1)
    for _ in range(300):
        ours = chance.randbytes(chance.randint(1, 300))
        theirs = bytearray(ours)
        assert first_difference(ours, bytes(theirs)) == -1
        places = sorted(chance.sample(range(len(ours)), chance.randint(1, min(3, len(ours)))))
        for place in places:
            theirs[place] ^= 1
        assert first_difference(ours, bytes(theirs)) == places[0]


def test_a_slave_that_has_nothing_asks_from_the_second_byte_and_then_for_all() -> None:
    overlap = Overlap(0, 0, whole=True)
    assert (overlap.begin, overlap.lacks_first_byte) == (1, True)
    assert overlap.retry()
    assert (overlap.begin, overlap.lacks_first_byte) == (0, False)
    assert not overlap.retry()


@pytest.mark.parametrize("told", ["127.0.0.1:99999", "127.0.0.1:x", "nowhere"])
async def test_an_impossible_address_of_a_master_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, told: str
) -> None:
    """A name server may tell anything; the slave goes on asking."""
    async with pair(tmp_path) as made:
        master = await made.master()
        fill(master.store, 10)
        addresses = [told]
        slave = made.slave(lambda: addresses[0])
        await until(lambda: f"master_unreachable address={told}" in caplog.text)
        assert "has the form host:port" in caplog.text
        addresses[0] = master.address
        await until_copied(master, slave)


async def test_a_log_is_copied_over_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only by a slave that trusts the master, and shows a certificate that the master trusts."""
    authority = trustme.CA()
    settings = tls_settings(tmp_path, authority, client_auth=ClientAuth.REQUIRE)
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    good = client_files(tmp_path, authority)
    async with pair(tmp_path) as made:
        master = await made.master(tls=ServerTls(settings))
        fill(master.store, 100)
        slave = made.slave(master, tls=ClientTls(good))
        strays = [
            made.slave(master, "distrustful", tls=ClientTls(replace(good, ca_path=str(other)))),
            made.slave(master, "unknown", tls=ClientTls(TlsOptions(good.ca_path))),
            made.slave(master, "plain"),
        ]
        fill(master.store, 100, first=100)
        await until_copied(master, slave)
        assert_same(master.store, slave.store)
        await until(lambda: f"not signed by an authority in {other}" in caplog.text)
        assert [stray.store.written_offset for stray in strays] == [0, 0, 0]
