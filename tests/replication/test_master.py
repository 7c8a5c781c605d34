"""What a master sends to whom, and what it takes for an acknowledgement."""

import asyncio
from asyncio import StreamWriter as Writer
from pathlib import Path

import pytest

from cometmq.replication.master import MasterSettings
from cometmq.replication.transfer import REPORT
from cometmq.store.config import FlushDiskType
from tests.replication.pairs import assert_same, pair, until, until_copied
from tests.store.stores import fill


async def test_a_sync_master_sends_only_what_is_on_its_device(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master(flush_disk_type=FlushDiskType.SYNC_FLUSH)
        slave = made.slave(master)
        assert slave.slave is not None
        await until(lambda: bool(master.master and master.master.slaves()))
        fill(master.store, 10)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert slave.store.written_offset == 0
        master.store.flusher.sync_now()
        await until_copied(master, slave)


async def test_several_slaves_and_a_late_one_get_the_whole_history(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master(settings=MasterSettings(copies=3, transfer_bytes=5_000))
        first = made.slave(master, "one")
        fill(master.store, 300)
        await until_copied(master, first)
        second = made.slave(master, "two")
        await until_copied(master, first, second)
        assert_same(master.store, second.store)
        assert master.master is not None
        await until(lambda: master.master.reached == master.store.written_offset)  # type: ignore[union-attr]
        assert [state.behind_bytes for state in master.master.slaves()] == [0, 0]


async def test_a_new_slave_may_take_the_last_file_alone(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master(settings=MasterSettings(whole_history=False))
        fill(master.store, 300)
        slave = made.slave(master)
        await until_copied(master, slave)
        assert slave.store.log.segments.start == master.store.log.segments.files[-1].base
        assert_same(master.store, slave.store)


async def test_a_port_scan_is_no_slave(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        master = await made.master(settings=MasterSettings(copies=2))
        fill(master.store, 30)
        assert master.master is not None
        for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\x7f" * 8, b"\xff" * 64):
            reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
            writer.write(greeting)
            async with asyncio.timeout(10):
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
            writer.close()
        assert master.master.reached == 0
        assert not master.master.has_enough


async def test_cold_history_is_read_in_a_thread_and_at_the_rate(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        node = made.open("master")
        fill(node.store, 600)
        await made.close(node)
        settings = MasterSettings(rate_bytes_per_s=2_000_000, transfer_bytes=10_000)
        master = await made.master(settings=settings)
        master.store.reads.hot_bytes = 0
        slave = made.slave(master)
        await until_copied(master, slave)
        assert_same(master.store, slave.store)


async def crowd(port: int, count: int, said: bytes, host: str = "127.0.0.1") -> list[Writer]:
    """Connections from a machine that say this and no more."""
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writer.write(said)
        writers.append(writer)
    return writers


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9"])
@pytest.mark.parametrize("said", ["nothing", "a part", "no log", "all of the log"])
async def test_strangers_do_not_keep_a_slave_out(tmp_path: Path, said: str, host: str) -> None:
    async with pair(tmp_path) as made:
        node = await made.master(settings=MasterSettings(copies=2))
        master = node.master
        assert master is not None
        fill(node.store, 30)
        text = {
            "nothing": b"", "a part": b"\0\0\0", "no log": REPORT.pack(0),
            "all of the log": REPORT.pack(node.store.written_offset),
        }[said]  # fmt: skip
        writers = await crowd(node.port, 150, text, host)
        slave = made.slave(node)
        await until_copied(node, slave)
        more = await crowd(node.port, 150, text, host)
        await until(lambda: len(master._admission.silent) + len(master.slaves()) >= 64)
        fill(node.store, 30, first=30)
        await until_copied(node, slave)
        await until(lambda: master.reached == node.store.written_offset)
        assert len(master.slaves()) <= 64
        assert len(master._admission.silent) <= 64
        for writer in [*writers, *more]:
            writer.close()


async def test_strangers_that_say_nothing_are_no_copies(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        node = await made.master(settings=MasterSettings(copies=2))
        master = node.master
        assert master is not None
        fill(node.store, 30)
        writers = await crowd(node.port, 5, b"\0")
        await until(lambda: len(master._admission.silent) == 5)
        assert master.reached == 0
        assert not master.has_enough
        assert not master.has_a_near_slave()
        assert master.slaves() == []
        for writer in writers:
            writer.close()
