"""Name server and broker put together in one process, the way ``cometmq start`` runs them.

The broker registers with the name server beside it, so a node needs nothing else. Settings are
RocketMQ's property names; those that only a name server knows go to it, all others to the broker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.broker import config as broker_config
from cometmq.core.settings import build, normalise, reject_unknown
from cometmq.namesrv.config import NamesrvConfig
from cometmq.store.config import StoreConfig

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.clock import Clock

log = logging.getLogger(__name__)

#: What a node listens on unless told otherwise: nobody else's machine reaches it.
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of the parts of a node, and remarks on them for the log."""

    namesrv: NamesrvConfig
    broker: BrokerConfig
    store: StoreConfig
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """The addresses of a node that runs; ``is_registered`` tells whether its own name server has
    its broker now."""

    namesrv: str
    broker: str
    is_registered: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that serves: the address that it tells others, and ``registered_with``, which gives
    the name servers that have it now."""

    address: str
    registered_with: Callable[[], list[str]]


def node_config(
    store: Path,
    settings: Mapping[str, str],
    *,
    namesrv_port: int = 0,
    broker_port: int = 0,
    bind: str = "",
) -> NodeConfig:
    """The configuration of a node that keeps everything under ``store``.

    Ports and ``store`` win over ``settings``; ``bind`` does when it is given. Raises SettingsError
    for an unknown key or a bad value.
    """
    values = dict(settings)
    if bind:
        values["bindAddress"] = bind
    shared = _names(broker_config.BrokerConfig, StoreConfig)
    own = {key: value for key, value in values.items() if _is_namesrv_only(key, shared)}
    for_broker = {key: value for key, value in values.items() if key not in own}
    broker, store_settings, notices = broker_config.load(
        for_broker | {"storePathRootDir": str(store), "listenPort": str(broker_port)}
    )
    own |= {
        "bindAddress": broker.bind_address,
        "listenPort": str(namesrv_port),
        "remoteAdminEnable": str(broker.remote_admin_enable),
    }
    own.setdefault("kvConfigPath", str(store / "config" / "kvConfig.json"))
    namesrv = namesrv_config(own)
    return NodeConfig(namesrv, broker, store_settings, tuple(notices))


def namesrv_config(values: Mapping[str, str]) -> NamesrvConfig:
    """A name server's settings. Raises SettingsError for an unknown key or a bad value."""
    config, used = build(NamesrvConfig, values)
    reject_unknown(values, used, (NamesrvConfig,))
    return config


@asynccontextmanager
async def running_node(
    config: NodeConfig, clock: Clock, on_failed: Callable[[], None] = lambda: None
) -> AsyncIterator[Node]:
    """Run a node; inside, it serves and has tried to register.

    Raises what a start can raise: StoreError, and OSError for a port that is taken; for
    ``on_failed`` see :func:`running_broker`.
    """
    async with running_namesrv(config.namesrv, clock) as namesrv:
        broker = set_address(config.broker, namesrv)
        async with running_broker(
            broker, config.store, clock, config.notices, on_failed
        ) as running:
            yield Node(namesrv, running.address, lambda: namesrv in running.registered_with())


@asynccontextmanager
async def running_namesrv(config: NamesrvConfig, clock: Clock) -> AsyncIterator[str]:
    """Run a name server; gives its address."""
    from cometmq.namesrv.app import NameServer

    server = NameServer(config, clock)
    try:
        port = await server.start()
        yield join_address(reachable(config.bind_address), port)
    finally:
        await server.stop()


@asynccontextmanager
async def running_broker(
    config: BrokerConfig,
    store: StoreConfig,
    clock: Clock,
    notices: tuple[str, ...] = (),
    on_failed: Callable[[], None] = lambda: None,
) -> AsyncIterator[RunningBroker]:
    """Run a broker; inside, it serves and has tried to register with its name servers.

    ``on_failed`` is called when it ended to begin anew, and could not: the block is to end then,
    and what was wrong is raised behind it.
    """
    from cometmq.broker.supervisor import Lives

    for notice in notices:
        log.warning("setting_notice text=%r", notice)
    lives = Lives(config, store, clock)
    lives.on_failed = on_failed
    port = await lives.start()
    try:
        address = join_address(config.broker_ip1, port)
        # The broker of now: one that began anew registers anew.
        yield RunningBroker(address, lambda: lives.broker.registered)
        lives.raise_failure()
    finally:
        await lives.stop()


def set_address(config: BrokerConfig, namesrv: str) -> BrokerConfig:
    """``config`` with ``namesrv`` first among the name servers it registers with."""
    from dataclasses import replace

    return replace(config, namesrv_addr=";".join([namesrv, *config.name_servers]))


def reachable(bind_address: str) -> str:
    """What this process connects to when it listens on ``bind_address``."""
    return broker_config.reachable_address(bind_address)


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets round an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _names(*classes: type) -> frozenset[str]:
    return frozenset(normalise(field.name) for cls in classes for field in fields(cls))


def _is_namesrv_only(key: str, shared: frozenset[str]) -> bool:
    name = normalise(key)
    return name in _names(NamesrvConfig) and name not in shared
