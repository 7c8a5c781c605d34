"""A new master takes the address of the old one: what is waited for, and what is not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.migration import Mover, NotMoved
from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.admin.takeover import NotTaken, look_at_address, take_address
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.protocol.bodies import AddressState
from tests.broker.replicated import group
from tests.broker.test_supervisor import SLAVE, Living, living

#: A documentation address: no machine has it.
ELSEWHERE = "192.0.2.1:10911"


def address_of(running: Living) -> str:
    return f"127.0.0.1:{running.broker.port}"


async def test_it_is_taken_once_nobody_listens_there(tmp_path: Path) -> None:
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "a") as master,
    ):
        remoting, broker, clock = client.session.remoting, address_of(master), SystemClock()
        other = socket.create_server(("127.0.0.1", lasting_port(VIP_DISTANCE)))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(NotTaken, match=f"cometmq migrate take-address {broker} {address}"):
            await take_address(remoting, clock, broker, address, wait_ms=-1)
        assert await look_at_address(remoting, broker, address) == AddressState(
            "in_use", f"{address}: Address already in use"
        )
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            other.close()

        assert await take_address(remoting, clock, broker, address, say=say) >= 0
        assert said == [f"waiting: {address} is in use; the old master has to stop within 120 s"]
        masters = await Admin(client.session).brokers(masters_only=True)
        assert [each.address for each in masters] == [address]
        assert await take_address(remoting, clock, address, address) >= 0


async def test_another_machine_s_is_not_waited_for(tmp_path: Path) -> None:
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "a") as master,
    ):
        with pytest.raises(NotTaken, match="not an address of the machine"):
            await take_address(
                client.session.remoting, SystemClock(), address_of(master), ELSEWHERE
            )


async def test_a_broker_that_does_not_answer_is_asked_again() -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(NotTaken, match=r"127\.0\.0\.1:1"):
            await take_address(
                client.session.remoting, SystemClock(), "127.0.0.1:1", ELSEWHERE, wait_ms=0
            )


async def test_a_move_begins_only_if_the_address_can_be_had(tmp_path: Path) -> None:
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "b", **SLAVE) as new,
    ):
        slave = address_of(new)
        mover = Mover(Admin(client.session), client.session, slave, say=lambda text: None)
        with pytest.raises(NotMoved, match="nothing was changed"):
            await mover._check_address(ELSEWHERE)
        await mover._check_address(f"127.0.0.1:{lasting_port(VIP_DISTANCE)}")
