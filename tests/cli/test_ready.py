"""A broker is ready once a name server has it; before, it serves those who know its address."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.operation.raw import RawPeer, send_header

WAIT_MS = 60_000
WAITS = "waits_for_name_server"


@contextmanager
def started(broker: BrokerProcess) -> Iterator["subprocess.Popen[bytes]"]:
    """A broker process whose ready line nobody has waited for."""
    with broker.log_path.open("ab") as log:
        process = broker.process = subprocess.Popen(
            broker.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
    try:
        yield process
    finally:
        broker.kill()


async def until_it_waits(broker: BrokerProcess) -> None:
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + WAIT_MS
    while WAITS not in broker.log_tail():
        assert clock.monotonic_ms() < deadline_ms, broker.log_tail()
        await clock.sleep_ms(20)


async def send_one(address: str) -> None:
    peer = await RawPeer.connect(address)
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("first", 0, "", 1), b"x")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await peer.close()


async def test_a_broker_is_ready_once_a_name_server_has_it(tmp_path: Path) -> None:
    namesrv = NamesrvProcess(tmp_path)
    broker = BrokerProcess(tmp_path, namesrv.namesrv)
    with started(broker):
        await until_it_waits(broker)
        (line,) = [each for each in broker.log_tail().splitlines() if WAITS in each]
        assert namesrv.namesrv in line
        await send_one(broker.broker)
        assert broker._read_line(200) == "", "no name server has it"
        namesrv.start()
        try:
            line = await asyncio.to_thread(broker._read_line, WAIT_MS)
            assert line == f"ready broker={broker.broker}"
            async with Client(namesrv.namesrv) as client:
                info = await Admin(client.session).cluster_info()
            assert set(info.broker_addr_table) == {"broker-a"}
        finally:
            namesrv.kill()


async def test_a_broker_that_waits_stops_in_order(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, NamesrvProcess(tmp_path).namesrv)
    with started(broker):
        await until_it_waits(broker)
        assert await asyncio.to_thread(broker.terminate) == 0
    assert "stopped before its start" not in broker.log_tail()
    assert not (broker.store / "abort").exists()


async def test_a_broker_without_name_servers_waits_for_none(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "")
    broker.start()
    try:
        assert WAITS not in broker.log_tail()
    finally:
        broker.kill()
