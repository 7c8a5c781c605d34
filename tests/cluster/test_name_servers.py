"""Two name servers that know nothing of each other, two brokers: what stays when one goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode
from tests.cluster.load import names
from tests.cluster.servers import BrokerProcess, NamesrvProcess

TOPIC = "orders"
NOTICED_WITHIN_MS = 2_000
WAIT_S = 60


@dataclass
class Cluster:
    """Two name servers and two masters, which register with both."""

    namesrvs: list[NamesrvProcess]
    brokers: list[BrokerProcess]

    @property
    def addresses(self) -> str:
        """Both name servers, as a client is told them."""
        return ";".join(each.namesrv for each in self.namesrvs)


@asynccontextmanager
async def cluster(home: Path, **settings: str) -> AsyncIterator[Cluster]:
    """Everything runs, and both name servers know both brokers."""
    with ExitStack() as stack:
        namesrvs = [NamesrvProcess(home / str(number), **settings) for number in range(2)]
        for namesrv in namesrvs:
            namesrv.start()
            stack.callback(namesrv.kill)
        made = Cluster(namesrvs, [])
        for name in ("broker-a", "broker-b"):
            broker = BrokerProcess(home, made.addresses, name=name)
            broker.start()
            stack.callback(broker.kill)
            made.brokers.append(broker)
        for namesrv in namesrvs:
            async with Client(namesrv.namesrv) as client:
                await until(lambda: _has(client, {"broker-a", "broker-b"}))
        yield made


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Returns once it holds. Raises TimeoutError when that takes a minute."""
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.02)


async def _has(client: Client, brokers: set[str]) -> bool:
    info = await Admin(client.session).cluster_info()
    return set(info.broker_addr_table) == brokers


async def _sent_to(client: Client, count: int) -> Mapping[str, int]:
    """How many of so many messages each broker got."""
    found: dict[str, int] = {}
    for number in range(count):
        result = await client.send(TOPIC, f"m{number:08d}".encode())
        found[result.queue.broker_name] = found.get(result.queue.broker_name, 0) + 1
    return found


async def test_either_name_server_alone_is_enough(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        async with Client(made.addresses) as client:
            await Admin(client.session).create_topic(TOPIC, queues=2)
            assert set(await _sent_to(client, 8)) == {"broker-a", "broker-b"}
            made.namesrvs[0].kill()
            # A topic of now is known to the one that is left, and its clients find it there.
            await Admin(client.session).create_topic("later", queues=2)
            await client.send("later", b"body")
            async with Client(made.addresses) as other:
                assert len(await names(other, TOPIC)) == 8
        made.namesrvs[0].start()
        made.namesrvs[1].kill()
        async with Client(made.namesrvs[0].namesrv) as client:
            # It comes back with nothing; the brokers tell it everything within seconds.
            await until(lambda: _has(client, {"broker-a", "broker-b"}))
            await client.send("later", b"body")


async def test_brokers_that_go_are_gone_from_every_name_server(tmp_path: Path) -> None:
    clock = SystemClock()
    async with cluster(tmp_path) as made:
        for number, (broker, end) in enumerate(
            zip(made.brokers, ("kill", "terminate"), strict=True)
        ):
            begun_ms = clock.monotonic_ms()
            # Killed, its connections close; stopped, it says so: no need to wait for silence.
            await asyncio.to_thread(getattr(broker, end))
            begun_ms = begun_ms if end == "kill" else clock.monotonic_ms()
            left = {each.settings["brokerName"] for each in made.brokers[number + 1 :]}
            for namesrv in made.namesrvs:
                async with Client(namesrv.namesrv) as client:
                    await until(lambda: _has(client, left))  # noqa: B023
            assert clock.monotonic_ms() - begun_ms < NOTICED_WITHIN_MS


async def test_a_broker_is_drained_and_comes_back(tmp_path: Path) -> None:
    async def tell(client: Client, code: RequestCode) -> None:
        """Each name server has to be told: they do not know of each other."""
        for namesrv in made.namesrvs:
            await client.session.remoting.call(
                namesrv.namesrv, code, h.BrokerName("broker-a"), timeout_ms=5_000
            )

    async with cluster(tmp_path) as made, Client(made.addresses) as client:
        await Admin(client.session).create_topic(TOPIC, queues=2)
        assert set(await _sent_to(client, 8)) == {"broker-a", "broker-b"}
        await tell(client, RequestCode.WIPE_WRITE_PERM_OF_BROKER)
        await client.session.refresh(TOPIC)
        assert set(await _sent_to(client, 8)) == {"broker-b"}
        # What it has is read as before.
        assert len(await names(client, TOPIC)) == 16
        await tell(client, RequestCode.ADD_WRITE_PERM_OF_BROKER)
        await client.session.refresh(TOPIC)
        assert set(await _sent_to(client, 8)) == {"broker-a", "broker-b"}


async def test_an_order_configuration_decides_where_an_ordered_topic_is_written(
    tmp_path: Path,
) -> None:
    async with (
        cluster(tmp_path, orderMessageEnable="true") as made,
        Client(made.addresses) as client,
    ):
        await Admin(client.session).create_topic(TOPIC, queues=2)
        for namesrv in made.namesrvs:
            await client.session.remoting.call(
                namesrv.namesrv,
                RequestCode.PUT_KV_CONFIG,
                h.PutKvConfig("ORDER_TOPIC_CONFIG", TOPIC, "broker-b:2"),
                timeout_ms=5_000,
            )
        await client.session.refresh(TOPIC)
        assert set(await _sent_to(client, 8)) == {"broker-b"}
        # A broker that goes does not move the others' keys: the configuration stays.
        made.brokers[0].kill()
        await client.session.refresh(TOPIC)
        assert set(await _sent_to(client, 4)) == {"broker-b"}
