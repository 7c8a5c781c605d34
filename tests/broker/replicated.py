"""A name server, a master and slaves of one name, each a whole broker in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.broker.replication import roles
from cometmq.broker.replication.roles import MasterPart, SlavePart
from cometmq.replication import slave as slave_module
from cometmq.replication.master import Master
from cometmq.replication.slave import Slave
from tests.broker.serving import RunningBroker, running_broker
from tests.namesrv.serving import name_server
from tests.replication.pairs import until


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repeated every few seconds follows at once."""
    monkeypatch.setattr(slave_module, "RETRY_MS", 10)
    monkeypatch.setattr(roles, "TABLES_INTERVAL_MS", 50)
    monkeypatch.setattr("cometmq.broker.topics.registration.RETRY_MS", 20)
    monkeypatch.setattr("cometmq.broker.topics.registration._TICK_MS", 10)


@dataclass
class Group:
    """A name server and brokers of one name."""

    root: Path
    namesrv: str
    stack: AsyncExitStack

    async def start(self, number: int, **settings: str) -> RunningBroker:
        """The broker with a number; 0 is the master."""
        role = {} if number == 0 else {"brokerRole": "SLAVE", "brokerId": str(number)}
        values = {"namesrvAddr": self.namesrv, **role, **settings}
        return await self.stack.enter_async_context(
            running_broker(self.root / str(number), None, **values)
        )


@asynccontextmanager
async def group(root: Path) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(name_server(root))
        yield Group(root, served.address, stack)


def master_of(running: RunningBroker) -> Master:
    """What a broker does as a master."""
    part = running.broker.replication.part
    assert isinstance(part, MasterPart)
    return part.master


def slave_of(running: RunningBroker) -> Slave:
    """What a broker does as a slave."""
    part = running.broker.replication.part
    assert isinstance(part, SlavePart)
    return part.slave


async def until_copied(master: RunningBroker, *slaves: RunningBroker) -> None:
    """Returns once slaves have dispatched all of the master's log, and have its topics."""

    def same(slave: RunningBroker) -> bool:
        end = master.broker.store.written_offset
        versions = [each.broker.topics.table.data_version for each in (master, slave)]
        return (
            slave.broker.store.dispatched_offset == end
            and slave.broker.store.written_offset == end
            and versions[0] == versions[1]
        )

    await until(lambda: all(same(slave) for slave in slaves))
