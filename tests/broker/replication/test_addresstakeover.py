"""A master takes over the address of the one before it, and keeps it over restarts."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.broker.config import BrokerRole, load
from cometmq.broker.replication import addresstakeover as takenaddress
from cometmq.broker.replication.addresstakeover import Addresses
from cometmq.broker.replication.roles import keep_role, role_path
from cometmq.core.clock import SystemClock
from cometmq.core.errors import SettingsError
from cometmq.net.server import reserve
from cometmq.protocol.bodies import AddressState, TakeAddress
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.store.files import PosixFiles, read_file
from tests.broker.replicated import group, hurry
from tests.broker.serving import BrokerClient, make_broker, running_broker
from tests.broker.test_supervisor import SLAVE, Living, living, until_same
from tests.replication.pairs import until

#: A documentation address: no machine has it.
ELSEWHERE = "192.0.2.1:10911"


async def ask(client: BrokerClient, address: str, *, check: bool = False) -> str:
    body = msgspec.json.encode(TakeAddress(address, check))
    head, answer = await client.ask(RequestCode.TAKE_ADDRESS, body)
    assert head.code == ResponseCode.SUCCESS, head
    return msgspec.json.decode(answer, type=AddressState).state


async def refusal(client: BrokerClient, address: str) -> str:
    head, _ = await client.ask(RequestCode.TAKE_ADDRESS, msgspec.json.encode(TakeAddress(address)))
    assert head.code == ResponseCode.ILLEGAL_OPERATION
    return head.remark or ""


async def connect(running: Living, port: int) -> BrokerClient:
    client = BrokerClient(*await asyncio.open_connection("127.0.0.1", port))
    running.add(client)
    return client


async def registered(running: Living) -> list[dict[str, str]]:
    """The addresses of each broker name, as name servers have them."""
    config, remoting = running.broker.config, running.broker.remoting
    found = []
    for server in config.name_servers:
        answer = await remoting.call(
            server, RequestCode.GET_BROKER_CLUSTER_INFO, None, timeout_ms=30_000
        )
        table = json.loads(answer.body)["brokerAddrTable"]
        found.append({} if not table else table["broker-a"]["brokerAddrs"])
    return found


def kept(root: Path) -> bytes | None:
    """Return the contents of the role file; None if there is none."""
    return read_file(PosixFiles(), role_path(str(root)))


def is_kept(root: Path) -> bool:
    return kept(root) is not None


async def promoted(slave: Living) -> None:
    before = slave.broker
    slave.lives.promote(BrokerRole.ASYNC_MASTER)
    await until(lambda: slave.broker is not before and bool(slave.broker.registered))


async def test_it_serves_and_is_registered_there_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    async with group(tmp_path) as made:
        port = lasting_port(VIP_DISTANCE)
        address = f"127.0.0.1:{port}"
        async with living(made, "b", **SLAVE) as new:
            async with living(made, "a", listenPort=str(port)) as old:
                assert (await (await old.connect()).send(b"one")).code == 0
                await until_same(old, new)
                client = await new.connect()
                assert await ask(client, address, check=True) == "in_use"
                assert await ask(client, ELSEWHERE, check=True) == "not_here"
                assert "promote this broker first" in await refusal(client, address)
            own = new.broker.addresses.own
            await promoted(new)
            client = await new.connect()
            assert await ask(client, ELSEWHERE) == "not_here"
            assert await ask(client, address, check=True) == "free"
            assert await registered(new) == [{"0": own}]
            assert await ask(client, address) == "taken"
            assert await registered(new) == [{"0": address}]
            assert await ask(client, address) == "taken"
            assert "already" in await refusal(client, own)
            for each in (port, port - VIP_DISTANCE, new.broker.port):
                assert (await (await connect(new, each)).send(b"more")).code == 0
            assert new.broker.replication.rivals.own == {own, address}
        # The settings still say that it is a slave of the other.
        async with living(made, "b", **SLAVE) as again:
            assert again.broker.addresses.current == address
            assert await registered(again) == [{"0": address}]
            assert (await (await connect(again, port)).send(b"more")).code == 0
        # Told of the role alone it keeps the address; told of both it goes by its settings.
        async with living(made, "b") as again:
            assert again.broker.addresses.current == address
            assert is_kept(tmp_path / "b")
        async with living(made, "b", takenAddress=address) as again:
            assert again.broker.addresses.current == address
        assert not is_kept(tmp_path / "b")


async def test_what_others_use_is_left_to_them(tmp_path: Path) -> None:
    async with group(tmp_path) as made, living(made, "a") as running:
        client = await running.connect()
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"127.0.0.1:{other.getsockname()[1]}"
            assert await ask(client, address) == "in_use"
            assert await registered(running) == [{"0": running.broker.addresses.own}]
            assert running.broker.config.taken_address == ""
            assert not is_kept(tmp_path / "a")
            with pytest.raises(SettingsError, match=f"took over {address} and cannot listen there"):
                make_broker(tmp_path / "c", takenAddress=address).addresses.reserve()
        assert await ask(client, address) == "taken"


async def test_a_take_that_cannot_be_kept_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*_args: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    async with running_broker(tmp_path) as running:
        client = await running.connect()
        address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
        with monkeypatch.context() as patched:
            patched.setattr(takenaddress, "keep_role", no)
            assert "no space" in await refusal(client, address)
        assert running.broker.config.taken_address == ""
        assert await ask(client, address, check=True) == "free"


@pytest.mark.parametrize("address", ["nowhere", "no.such.host.invalid:1"])
async def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    async with running_broker(tmp_path) as running:
        assert address.partition(":")[0] in await refusal(await running.connect(), address)


class SlowReserve:
    """Opens sockets in a thread, each only once it may: one to try the host, two to keep."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.opened: list[socket.socket] = []

    def __call__(self, host: str, port: int, *, exclusive: bool = False) -> socket.socket:
        self.opened.append(reserve(host, port, exclusive=exclusive))
        self.go.wait(60)
        return self.opened[-1]

    @property
    def is_closed(self) -> bool:
        return len(self.opened) == 3 and all(each.fileno() < 0 for each in self.opened)


def slow_addresses() -> tuple[Addresses, SlowReserve]:
    config, _, _ = load({"bindAddress": "127.0.0.1"})
    opening = SlowReserve()
    return Addresses(config, "", opening), opening


async def test_a_cancelled_reservation_leaves_no_socket() -> None:
    addresses, opening = slow_addresses()
    address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
    asking = asyncio.ensure_future(addresses.reserve_soon(address))
    try:
        await until(lambda: bool(opening.opened))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    finally:
        opening.go.set()
    await until(lambda: opening.is_closed)


async def test_a_reservation_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takenaddress, "RESERVE_TIMEOUT_MS", 50)
    addresses, opening = slow_addresses()
    address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
    try:
        async with asyncio.timeout(60):
            with pytest.raises(TimeoutError, match="within 50 ms"):
                await addresses.reserve_soon(address)
            with pytest.raises(TimeoutError, match="still being resolved"):
                await addresses.reserve_soon(address)
    finally:
        opening.go.set()
    await until(lambda: opening.is_closed)
    monkeypatch.setattr(takenaddress, "RESERVE_TIMEOUT_MS", 60_000)

    async def again() -> list[socket.socket]:
        async with asyncio.timeout(60):
            while True:
                try:
                    return await addresses.reserve_soon(address)
                except TimeoutError:
                    await asyncio.sleep(0.001)

    found = await again()
    assert len(found) == 2
    for each in found:
        each.close()


async def test_a_reservation_that_no_thread_began_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takenaddress, "RESERVE_TIMEOUT_MS", 50)
    addresses, opening = slow_addresses()
    address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
    loop, busy = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    waiting = loop.run_in_executor(None, busy.wait, 60)
    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError, match="within 50 ms"):
            await addresses.reserve_soon(address)
        assert not opening.opened
        busy.set()
        opening.go.set()
        await waiting
    monkeypatch.setattr(takenaddress, "RESERVE_TIMEOUT_MS", 60_000)
    for each in await addresses.reserve_soon(address):
        each.close()


async def test_a_host_that_is_still_being_resolved_may_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takenaddress, "RESERVE_TIMEOUT_MS", 50)
    go = threading.Event()

    def reserve_slowly(*_: object) -> list[socket.socket]:
        go.wait(60)
        return []

    async with running_broker(tmp_path) as running:
        client = await running.connect()
        address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
        try:
            with monkeypatch.context() as slow:
                slow.setattr(Addresses, "reserve_at", reserve_slowly)
                assert await ask(client, address) == "resolving"
                assert await ask(client, address, check=True) == "resolving"
        finally:
            go.set()
        monkeypatch.setattr(takenaddress, "RESERVE_TIMEOUT_MS", 60_000)
        async with asyncio.timeout(60):
            while (state := await ask(client, address)) == "resolving":
                await asyncio.sleep(0.001)
        assert state == "taken"


async def test_a_take_that_is_cancelled_closes_what_is_not_served(tmp_path: Path) -> None:
    config, _, _ = load({"bindAddress": "127.0.0.1"})
    addresses = Addresses(config, str(tmp_path), reserve)
    served: list[socket.socket] = []

    async def serve(listener: socket.socket) -> None:
        served.append(listener)
        if len(served) == 2:
            await asyncio.Event().wait()

    address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
    taking = asyncio.ensure_future(addresses.take(address, PosixFiles(), SystemClock(), serve))
    await until(lambda: len(served) == 2)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert [each.fileno() < 0 for each in served] == [False, True]
    served[0].close()
    assert not is_kept(tmp_path)


@pytest.mark.parametrize("is_promoted", [False, True])
async def test_a_take_that_fails_late_leaves_the_role_file_as_it_was(
    tmp_path: Path, *, is_promoted: bool
) -> None:
    config, _, _ = load({"bindAddress": "127.0.0.1"})
    if is_promoted:
        keep_role(BrokerRole.SYNC_MASTER, str(tmp_path), PosixFiles(), SystemClock())
    before = kept(tmp_path)
    seen: list[bytes] = []

    async def serve(_listener: socket.socket) -> None:
        seen.append(kept(tmp_path) or b"")
        raise OSError(errno.EMFILE, "too many files")

    address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
    addresses = Addresses(config, str(tmp_path), reserve)
    with pytest.raises(OSError, match="too many files"):
        await addresses.take(address, PosixFiles(), SystemClock(), serve)
    assert address.encode() in seen[0]
    assert kept(tmp_path) == before
    assert config.taken_address == ""
    for each in await addresses.reserve_soon(address):
        each.close()


class SlowSync(PosixFiles):
    """A device that makes a directory durable only once it may."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def sync_directory(self, path: str) -> None:
        if path.endswith("config"):  # the role file has its name by now
            self.begun.set()
            self.go.wait(60)
        super().sync_directory(path)


async def test_a_take_that_is_cancelled_while_it_writes_leaves_no_role_file(
    tmp_path: Path,
) -> None:
    config, _, _ = load({"bindAddress": "127.0.0.1"})
    files = SlowSync()
    addresses = Addresses(config, str(tmp_path), reserve)

    async def serve(_listener: socket.socket) -> None:
        raise AssertionError("the take was cancelled")

    address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
    taking = asyncio.ensure_future(addresses.take(address, files, SystemClock(), serve))
    await until(files.begun.is_set)
    assert is_kept(tmp_path)
    taking.cancel()
    files.go.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert not is_kept(tmp_path)


async def test_a_role_file_that_cannot_be_restored_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, _, _ = load({"bindAddress": "127.0.0.1"})

    async def serve(_listener: socket.socket) -> None:
        raise OSError(errno.EMFILE, "too many files")

    def no(*_args: object) -> None:
        raise OSError(errno.EIO, "no device")

    monkeypatch.setattr(takenaddress, "put_back_role", no)
    address = f"127.0.0.1:{lasting_port(VIP_DISTANCE)}"
    with pytest.raises(OSError, match="too many files"):
        await Addresses(config, str(tmp_path), reserve).take(
            address, PosixFiles(), SystemClock(), serve
        )
    assert f"role_file_not_restored path={role_path(str(tmp_path))}" in caplog.text
    assert "no device" in caplog.text


def reserved(bind: str, port: int, address: str) -> list[int]:
    config, _, _ = load({"bindAddress": bind, "listenPort": str(port)})
    addresses = Addresses(config, "", reserve)
    with ExitStack() as stack:
        for each in addresses.reserve():
            stack.callback(each.close)
        more = addresses.reserve_at(address)
        for each in more:
            stack.callback(each.close)
        return [each.getsockname()[1] for each in more]


def test_where_it_listens_anyway_nothing_is_opened() -> None:
    port = lasting_port(2 * VIP_DISTANCE)
    assert reserved("0.0.0.0", port, f"127.0.0.1:{port}") == []
    assert reserved("127.0.0.1", port, f"127.0.0.1:{port}") == []
    # Its VIP port is the other's own.
    assert reserved("127.0.0.1", port, f"127.0.0.1:{port - 2}") == [port - 4]
    assert reserved("127.0.0.1", port, f"127.0.0.2:{port}") == [port, port - 2]
    with pytest.raises(OSError, match="assign"):
        reserved("0.0.0.0", port, f"192.0.2.1:{port}")
