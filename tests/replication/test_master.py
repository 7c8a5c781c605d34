"""What a master sends to whom, at what rate, and what it takes for an acknowledgement; who keeps a
connection when more come than it takes.
"""

import asyncio
import contextlib
import ssl
from asyncio import StreamWriter as Writer
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from cometmq.core.clock import SystemClock
from cometmq.net.limits import Limit
from cometmq.net.server import reserve
from cometmq.net.tls import ServerTls
from cometmq.replication import master as master_module
from cometmq.replication.master import (
    Master,
    MasterSettings,
    Rate,
    SlaveAdmission,
    are_enough,
    reached,
)
from cometmq.replication.transfer import REPORT
from cometmq.store.config import FlushDiskType
from tests.net.serving import tls_settings
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


async def test_an_empty_slave_that_wants_all_of_an_empty_log_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with pair(tmp_path) as made:
        master = await made.master()
        assert master.master is not None
        slave = made.slave(master, whole_history=True)
        await until(lambda: bool(master.master and master.master.slaves()))
        assert "slave_begins_again" in caplog.text
        assert [one.message for one in caplog.records if one.levelname == "WARNING"] == []
        assert master.master.limits.hits[Limit.INVALID_STREAM] == 0
        fill(master.store, 20)
        await until_copied(master, slave)
        assert_same(master.store, slave.store)


async def test_a_slave_that_cannot_be_written_to_fails_no_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_slave: object, _view: memoryview) -> None:
        raise RuntimeError("the handler is closed")

    async with pair(tmp_path) as made:
        master = await made.master()
        slave = made.slave(master)
        fill(master.store, 10)
        await until_copied(master, slave)
        with monkeypatch.context() as patch:
            patch.setattr(master_module._Slave, "_send", broken)
            fill(master.store, 10)
        await until_copied(master, slave)
        assert_same(master.store, slave.store)


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
            async with asyncio.timeout(60):
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


def test_bytes_leave_at_the_rate() -> None:
    rate, now_ms, sent = Rate(1_000_000), 5_000, 0
    while now_ms < 15_000:
        if wait_ms := rate.wait_ms(now_ms):
            now_ms += wait_ms
        else:
            rate.spend(10_000, now_ms)
            sent += 10_000
    assert 10_000_000 <= sent <= 10_200_000


def test_what_was_not_sent_is_not_saved_up() -> None:
    rate = Rate(1_000_000)
    rate.spend(1, 0)
    assert rate.wait_ms(60_000) == 0
    for _ in range(11):
        rate.spend(10_000, 60_000)
    assert rate.wait_ms(60_000) > 0


def test_no_rate_is_no_bound() -> None:
    rate = Rate(0)
    rate.spend(1 << 40, 0)
    assert rate.wait_ms(0) == 0


@dataclass(frozen=True)
class Slave:
    acked: int


def slaves(*acked: int) -> list[Slave]:
    return [Slave(offset) for offset in acked]


@pytest.mark.parametrize(
    ("copies", "acked", "expected"),
    [
        (1, (), 100),
        (2, (), 0),
        (2, (70,), 70),
        (2, (-1,), 0),
        (2, (70, 90), 90),
        (3, (70, 90), 70),
        (3, (70, 90, 80), 80),
        (3, (70,), 0),
    ],
)
def test_where_enough_logs_hold_it(copies: int, acked: tuple[int, ...], expected: int) -> None:
    assert reached(slaves(*acked), copies, 100) == expected


@pytest.mark.parametrize(
    ("copies", "acked", "expected"),
    [
        (1, (), True),
        (2, (), False),
        (2, (-1,), False),
        (2, (50,), False),
        (2, (51,), True),
        (3, (51, 50), False),
        (3, (51, 99), True),
    ],
)
def test_whether_enough_are_near(copies: int, acked: tuple[int, ...], expected: bool) -> None:
    assert are_enough(slaves(*acked), copies, 100, 50) is expected


@dataclass(eq=False)
class Connection:
    host: str
    has_copied: bool = False


def places() -> SlaveAdmission[Connection]:
    return SlaveAdmission(silent_max=3, slaves_max=3)


def hosts(connections: dict[Connection, None]) -> list[str]:
    return [connection.host for connection in connections]


def slave_of(made: SlaveAdmission[Connection], host: str, *, copied: bool = False) -> Connection:
    """A connection that has reported an offset, and perhaps more."""
    connection = Connection(host)
    made.connected(connection)
    made.reported(connection)
    if copied:
        connection.has_copied = True
        made.copied(connection)
    return connection


def test_a_newcomer_takes_the_place_of_the_machine_that_has_most() -> None:
    made = places()
    for host in ("slave", "stranger", "stranger"):
        assert made.connected(Connection(host)) is None
    gone = made.connected(Connection("other"))
    assert gone is not None
    assert gone.host == "stranger"
    assert hosts(made.silent) == ["slave", "stranger", "other"]


def test_the_oldest_silent_one_goes_for_a_newcomer_of_its_machine() -> None:
    made, all_ = places(), [Connection("a") for _ in range(5)]
    assert [made.connected(one) for one in all_] == [None, None, None, all_[0], all_[1]]


def test_silent_ones_take_no_place_of_a_slave() -> None:
    made = places()
    slave = slave_of(made, "slave")
    for number in range(10):
        made.connected(Connection(f"stranger-{number}"))
    assert hosts(made.slaves) == ["slave"]
    assert len(made.silent) == 3
    made.left(slave)
    assert not made.slaves


def test_who_copies_stays_when_others_only_report() -> None:
    made = places()
    slave = slave_of(made, "a", copied=True)
    for _ in range(10):
        slave_of(made, "a")
    assert slave in made.slaves
    assert len(made.slaves) == 3


def test_a_machine_that_had_a_slave_comes_before_others() -> None:
    made = places()
    made.left(slave_of(made, "slave", copied=True))
    back = slave_of(made, "slave")
    for number in range(10):
        slave_of(made, f"stranger-{number}", copied=number > 7)
    assert back in made.slaves


def test_a_slave_comes_in_whoever_is_there() -> None:
    made = places()
    for _ in range(3):
        slave_of(made, "a", copied=True)
    slave = slave_of(made, "a")
    assert slave in made.slaves
    assert len(made.slaves) == 3


def test_machines_are_remembered_within_a_bound() -> None:
    made = places()
    for number in range(1_000):
        slave_of(made, f"h{number}", copied=True)
    assert len(made._hosts) == 64


async def test_stalled_tls_handshakes_leave_room_for_slaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "SILENT_MAX", 3)
    monkeypatch.setattr(master_module, "_HANDSHAKE_TIMEOUT_S", 60)
    authority = trustme.CA()
    tls = ServerTls(tls_settings(tmp_path, authority))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with pair(tmp_path) as made:
        node = made.open("master")
        node.master = master = Master(
            node.store, MasterSettings(), clock=SystemClock(), tasks=node.tasks
        )
        listener = reserve("127.0.0.1", 0)
        port = listener.getsockname()[1]
        await master.start(listener, tls)
        stalled = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16")
            stalled.append((reader, writer))
        async with asyncio.timeout(60):
            for reader, _ in stalled[:5]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        assert master.limits.hits[Limit.SLAVES] == 5
        assert len(master._handshakes) == 3
        _, slave = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        slave.write(REPORT.pack(0))
        await until(lambda: len(master.slaves()) == 1)
        for _, writer in (*stalled, (None, slave)):
            writer.transport.abort()
        await until(lambda: not master._handshakes)
