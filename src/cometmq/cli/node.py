"""Node: name server and broker in one process, as ``cometmq start`` runs them.

The broker registers with this name server, so a node needs no other process. Settings have
RocketMQ's property names. Settings that only a name server has go to it, all others to the broker.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.broker import config as broker_config
from cometmq.core.errors import SettingsError
from cometmq.core.settings import normalise, to_properties, to_wire_name
from cometmq.namesrv import config as namesrv_config
from cometmq.namesrv.config import NamesrvConfig
from cometmq.net.limits import LimitFields
from cometmq.net.tasks import Tasks
from cometmq.net.tls import ClientAuth, TlsMode
from cometmq.store.config import StoreConfig

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.clock import Clock
    from cometmq.monitoring.config import MonitoringFields
    from cometmq.monitoring.port import Monitored

log = logging.getLogger(__name__)

#: Setting of the size of a log file, and its value for a new store: a broker keeps two files ready,
#: which take 2 GiB with RocketMQ's default.
LOG_FILE_BYTES: Final = "mappedFileSizeCommitLog"
_SMALL_LOG_FILE_BYTES: Final = 32 * 1024 * 1024
#: Default listen address of a node: other machines cannot reach it.
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of the parts of a node, and notices about them for the log."""

    namesrv: NamesrvConfig
    broker: BrokerConfig
    store: StoreConfig
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """Addresses of a running node.

    ``is_registered`` returns whether the node's broker is registered with its name server.
    ``monitoring`` is the address of the HTTP port, "" without one.
    """

    namesrv: str
    broker: str
    is_registered: Callable[[], bool]
    monitoring: str = ""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Running broker.

    ``address`` is its advertised address; ``registered_with`` returns the name servers with which
    it is registered.
    """

    address: str
    registered_with: Callable[[], list[str]]


def log_file_bytes(store: Path, settings: Mapping[str, str]) -> tuple[str, str]:
    """Return the size of a log file in bytes, and its source, for ``settings`` without that size.

    A store that exists keeps its size, even one that a Java broker made.
    """
    directories = _log_directories(store, settings)
    if written := broker_config.log_file_bytes(directories):
        return str(written), f"the log files in {', '.join(directories)}"
    return str(_SMALL_LOG_FILE_BYTES), "cometmq start"


def _log_directories(store: Path, settings: Mapping[str, str]) -> tuple[str, ...]:
    named = {normalise(key): value for key, value in settings.items()}
    keys = ("storePathCommitLog", "readOnlyCommitLogStorePaths")
    paths, read_only = (named.get(normalise(key), "") for key in keys)
    try:
        return StoreConfig(
            str(store), paths, read_only_commit_log_store_paths=read_only
        ).commit_log_directories
    except SettingsError:  # the start reports what is wrong with them
        return ()


def node_config(
    store: Path,
    settings: Mapping[str, str],
    *,
    namesrv_port: int = 0,
    broker_port: int = 0,
    bind: str = "",
) -> NodeConfig:
    """Return the configuration of a node that keeps all its files under ``store``.

    Ports, ``store`` and a non-empty ``bind`` override ``settings``. Raises SettingsError for an
    unknown key or an invalid value.
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
        "aclEnable": str(broker.acl_enable),
        "rocketmqHome": broker.rocketmq_home or str(store),
        **_tls(broker),
        **{
            to_wire_name(each.name): str(getattr(broker, each.name)) for each in fields(LimitFields)
        },
    }
    own.setdefault("kvConfigPath", str(store / "config" / "kvConfig.json"))
    namesrv, more = namesrv_config.load(own)
    return NodeConfig(namesrv, broker, store_settings, (*notices, *more))


def _tls(broker: broker_config.BrokerConfig) -> dict[str, str]:
    """Return the TLS settings of the name server, which are the broker's.

    Raises SettingsError if the broker could not connect to its name server with them.
    """
    is_enforcing = broker.tls_server_mode is TlsMode.ENFORCING
    if is_enforcing and not broker.connects_with_tls:
        raise SettingsError("useTLS", "the broker of a node must connect to its name server")
    asks = broker.tls_server_need_client_auth is ClientAuth.REQUIRE
    if asks and broker.connects_with_tls and not broker.tls_client_cert_path:
        raise SettingsError(
            "tlsClientCertPath",
            "the broker of a node shows it to its name server: tlsServerNeedClientAuth=require "
            "holds for both",
        )
    return {key: text for key, text in to_properties(broker).items() if key.startswith("tlsServer")}


@asynccontextmanager
async def running_node(
    config: NodeConfig, clock: Clock, on_failed: Callable[[], None] = lambda: None
) -> AsyncIterator[Node]:
    """Run a node; inside the block, it serves and has tried to register.

    Raises StoreError, and OSError for a port in use. For ``on_failed`` see :func:`running_broker`.
    """
    async with (
        monitoring(config.broker, config.broker.bind_address, clock) as port,
        running_namesrv(config.namesrv, clock, port=port) as namesrv,
    ):
        broker = set_address(config.broker, namesrv)
        async with running_broker(
            broker, config.store, clock, config.notices, on_failed, port=port
        ) as running:
            yield Node(
                namesrv,
                running.address,
                lambda: namesrv in running.registered_with(),
                port.address,
            )


@dataclass(frozen=True, slots=True)
class OpenPort:
    """The HTTP port of a process: its address ("" if there is none) and the servers it shows."""

    address: str = ""
    parts: list[Monitored] = field(default_factory=list)


@asynccontextmanager
async def monitoring(
    settings: MonitoringFields, bind_address: str, clock: Clock
) -> AsyncIterator[OpenPort]:
    """Serve HTTP for the servers that are added to the port's parts, if the settings ask for it.

    Raises OSError if the address cannot be bound, SettingsError without the extra ``metrics``.
    """
    if not settings.serves_metrics:
        yield OpenPort()
        return
    try:
        from cometmq.monitoring.port import MonitoringPort
    except ModuleNotFoundError as error:
        raise SettingsError(
            "metricsExporterType",
            f"PROM needs {error.name}, which is not installed: pip install 'cometmq[metrics]'",
        ) from None
    tasks = Tasks()
    host = settings.metrics_prom_exporter_host or bind_address
    number = settings.metrics_prom_exporter_port
    names = [host, socket.gethostname(), *settings.metrics_names]
    port = MonitoringPort(host, number, names=names, clock=clock, tasks=tasks)
    number = port.start()
    try:
        yield OpenPort(join_address(reachable(host), number), port.parts)
    finally:
        await port.close()
        await tasks.close()


@asynccontextmanager
async def running_namesrv(
    config: NamesrvConfig,
    clock: Clock,
    notices: tuple[str, ...] = (),
    *,
    port: OpenPort | None = None,
) -> AsyncIterator[str]:
    """Run a name server, shown by the HTTP ``port``, and yield its address."""
    from cometmq.namesrv.app import NameServer

    for notice in notices:
        log.warning("setting_notice text=%r", notice)
    server = NameServer(config, clock)
    if port is not None:
        port.parts.append(server)
    try:
        number = await server.start()
        yield join_address(reachable(config.bind_address), number)
    finally:
        await server.stop()


@asynccontextmanager
async def running_broker(
    config: BrokerConfig,
    store: StoreConfig,
    clock: Clock,
    notices: tuple[str, ...] = (),
    on_failed: Callable[[], None] = lambda: None,
    *,
    port: OpenPort | None = None,
) -> AsyncIterator[RunningBroker]:
    """Run a broker, shown by the HTTP ``port``.

    Inside the block, it serves and has tried to register with its name servers. ``on_failed`` is
    called if the broker stopped to restart in this process, and could not start again. The block
    should then end; the error is raised after it.
    """
    from cometmq.broker.supervisor import CurrentBroker, Supervisor

    for notice in notices:
        log.warning("setting_notice text=%r", notice)
    lives = Supervisor(config, store, clock, on_failed=on_failed)
    if port is not None:
        port.parts.append(CurrentBroker(lives))
    number = await lives.start()
    try:
        address = join_address(config.broker_ip1, number)
        # Look the current broker up on each call: a restarted broker registers again.
        yield RunningBroker(address, lambda: lives.broker.registered)
        lives.raise_failure()
    finally:
        await lives.stop()


def set_address(config: BrokerConfig, namesrv: str) -> BrokerConfig:
    """Return ``config`` with ``namesrv`` as the first name server to register with."""
    from dataclasses import replace

    return replace(config, namesrv_addr=";".join([namesrv, *config.name_servers]))


def reachable(bind_address: str) -> str:
    """Return the address to connect to for a server that listens on ``bind_address``."""
    return broker_config.reachable_address(bind_address)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _names(*classes: type) -> frozenset[str]:
    return frozenset(normalise(field.name) for cls in classes for field in fields(cls))


def _is_namesrv_only(key: str, shared: frozenset[str]) -> bool:
    name = normalise(key)
    return name in _names(NamesrvConfig) and name not in shared
