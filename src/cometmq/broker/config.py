"""Settings of a broker, beside those of its store (upstream: BrokerConfig.java,
NettyServerConfig.java).

A RocketMQ property file is accepted unchanged. core/javakeys.py lists the keys of RocketMQ that
have no effect here.

Settings that are changed while the broker runs are kept in ``config/cometmq-settings.properties``
below the store (store/settingsfile.py).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import NotConnected, SettingsError
from cometmq.core.hosts import is_loopback
from cometmq.core.javakeys import ignored_keys, ignored_notice
from cometmq.core.settings import (
    OURS,
    build,
    changed_fields,
    check_ranges,
    convert,
    live_fields,
    normalise,
    raise_all,
    setting,
)
from cometmq.monitoring.config import MonitoringFields
from cometmq.net.client import split_address
from cometmq.net.limits import LimitFields
from cometmq.net.outgoing import OutgoingFields
from cometmq.net.tls import TlsMode
from cometmq.store.config import StoreConfig
from cometmq.store.files import PosixFiles
from cometmq.store.layout import file_offset
from cometmq.store.settingsfile import read_kept_settings

if TYPE_CHECKING:
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
#: Distance to the second port, to which older clients are directed for sends ("VIP channel").
VIP_DISTANCE: Final = 2
#: File in the store's config directory with settings that were changed while the broker ran.
SETTINGS_FILE: Final = "cometmq-settings.properties"
#: Limit of ``haTransferBatchSize``. A Java slave accepts transfers up to its buffer of 4 MiB.
TRANSFER_BATCH_MAX_BYTES: Final = 2 << 20
#: Limit of ``lookoutMicros``. Longer polling wastes processor time: a wake-up takes a twentieth of
#: this.
MAX_LOOKOUT_MICROS: Final = 1_000


class BrokerRole(Enum):
    """Role of a broker among the brokers of the same name."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class HaRejoin(Enum):
    """Action of a slave whose log differs from its master's.

    REFUSE copies nothing. TRUNCATE cuts the slave's log where the two differ, sets the cut part
    aside, and copies on.
    """

    REFUSE = "REFUSE"
    TRUNCATE = "TRUNCATE"


@dataclass(slots=True)
class BrokerConfig(OutgoingFields, LimitFields, MonitoringFields):
    """Settings of one broker, built from text by core/settings.py.

    All parts of a broker share one object. An administrator may change the live fields at run time,
    so each use must read them again. The others never change.
    """

    bind_address: str = setting(
        LOOPBACK,
        "address that the broker listens on; `0.0.0.0` accepts connections from other machines",
        rocketmq=OURS,
    )
    listen_port: int = setting(
        10911,
        "port that the broker listens on; 0 picks a free one. The broker also listens on the "
        "port two below it",
        least=0,
        most=65535,
    )
    broker_ip1: str = setting(
        LOOPBACK,
        "address that is advertised to clients; follows `bindAddress` unless it is set",
        rocketmq="the address of an interface by default",
    )
    broker_ip2: str = setting(
        "",
        "address that is advertised to slaves; defaults to that for clients",
        rocketmq="the address of an interface by default",
    )
    broker_name: str = setting(
        "broker-a",
        "the name under which clients know this broker",
        rocketmq="the name of the host by default",
    )
    broker_cluster_name: str = setting(
        "DefaultCluster",
        "the cluster it belongs to",
    )
    broker_id: int = setting(
        0,
        "0 for the master of a broker name; its slaves have 1 and up",
        least=0,
    )
    namesrv_addr: str = setting(
        "",
        "name servers to register with: `host:port;host:port`",
    )
    fetch_namesrv_addr_by_address_server: bool = setting(
        False,
        "whether an HTTP server is asked for the name servers, at the start and every 2 minutes; "
        "has no effect with `namesrvAddr`",
        see="how-to/configure.md#name-servers-from-an-http-server",
    )
    rmq_address_server_domain: str = setting(
        "jmenv.tbsite.net",
        "that HTTP server: `host` or `host:port`; the port is 8080 by default",
    )
    rmq_address_server_sub_group: str = setting(
        "nsaddr",
        "the last part of the URL that is asked: `http://host:port/rocketmq/nsaddr`",
    )
    broker_role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER,
        "`ASYNC_MASTER` answers sends once they are stored here, `SYNC_MASTER` once slaves "
        "have them too, `SLAVE` copies the master of its name",
        see="slaves.md",
    )
    ha_listen_port: int = setting(
        0,
        "port that slaves connect to; 0 is the port after `listenPort`, or a free one if that "
        "is taken",
        least=0,
        most=65535,
        rocketmq="10912 by default",
    )
    ha_master_address: str = setting(
        "",
        "for a slave, the replication address of its master; the slave asks the name servers "
        "unless it is set",
    )
    taken_address: str = setting(
        "",
        "`host:port` of a former master: the broker also listens on this address and registers "
        "under it",
        rocketmq=OURS,
        see="how-to/move-from-java.md#with-its-address",
    )
    ha_transfer_batch_size: int = setting(
        256 << 10,
        "size of the pieces in which the log is sent to slaves",
        unit="bytes",
        least=1,
        most=TRANSFER_BATCH_MAX_BYTES,
        live=True,
        rocketmq="32768 by default",
    )
    ha_slave_fallbehind_max: int = setting(
        256 << 20,
        "sends do not wait for a slave whose lag is more than this many bytes",
        unit="bytes",
        least=0,
        live=True,
    )
    ha_whole_history: bool = setting(
        True,
        "whether an empty slave copies the whole log; with `false` it copies only the last "
        "file, as in RocketMQ",
        rocketmq=OURS,
    )
    ha_rejoin: HaRejoin = setting(
        HaRejoin.REFUSE,
        "what a slave does if its log differs from its master's: `REFUSE` copies nothing, "
        "`TRUNCATE` cuts the slave's log where the two diverge",
        live=True,
        rocketmq=OURS,
        see="slaves.md#when-logs-differ",
    )
    max_ha_transfer_byte_in_second: int = setting(
        0,
        "most bytes a second that are sent to a slave; 0 is no limit",
        unit="bytes",
        least=0,
        live=True,
        rocketmq=OURS,
    )
    in_sync_replicas: int = setting(
        1,
        "number of logs, including the master's own, that must have a message before a "
        "SYNC_MASTER answers; 1 counts as 2",
        least=1,
        rocketmq=OURS,
    )
    slave_timeout: int = setting(
        3_000,
        "how long an answer waits for slaves",
        unit="ms",
        least=0,
        live=True,
    )
    slave_read_enable: bool = setting(
        True,
        "whether consumers with a large lag are redirected to a slave, and a slave serves "
        "them; with `false` a slave serves consumers only while its "
        "master is gone",
        live=True,
        rocketmq="false by default",
    )
    broker_permission: int = setting(
        6,
        "6 reads and writes, 4 only reads, 2 only writes",
        least=0,
        most=7,
        live=True,
    )
    start_accept_send_request_time_stamp: int = setting(
        0,
        "time since the epoch before which the broker refuses sends; it still accepts "
        "pulls, offsets, retries and ends of transactions",
        unit="ms",
        least=0,
        live=True,
    )
    remote_admin_enable: bool = setting(
        False,
        "whether other machines may change topics, groups and settings",
        rocketmq=OURS,
    )
    default_topic_queue_nums: int = setting(
        8,
        "number of queues of `TBW102`, the template for topics that are created automatically",
        least=1,
        live=True,
    )
    auto_create_topic_enable: bool = setting(
        True,
        "whether a send creates a missing topic",
        live=True,
    )
    auto_create_subscription_group: bool = setting(
        True,
        "whether a consumer creates its group if it is missing",
        live=True,
    )
    max_subscription_groups: int = setting(
        50_000,
        "consumer groups from which on consumers create no further ones; 0 is no limit",
        least=0,
        live=True,
        rocketmq=OURS,
        see="limits.md",
    )
    max_topics: int = setting(
        50_000,
        "topics, without retry topics, from which on sends create no further; 0 is no limit",
        least=0,
        live=True,
        rocketmq=OURS,
        see="limits.md",
    )
    cluster_topic_enable: bool = setting(
        True,
        "whether the topic named after the cluster may be read and written",
    )
    broker_topic_enable: bool = setting(
        True,
        "whether the topic named after the broker may be read and written",
    )
    trace_topic_enable: bool = setting(
        False,
        "whether the topic for message traces is created",
    )
    msg_trace_topic_name: str = setting(
        "RMQ_SYS_TRACE_TOPIC",
        "the name of that topic",
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True,
        "whether consumers are notified at once when their group changes",
        live=True,
    )
    max_message_size: int = setting(
        4 << 20,
        "largest body of a message",
        unit="bytes",
        least=1,
        live=True,
    )
    message_delay_level: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "the delays of levels 1, 2, ...: numbers with s, m, h or d",
    )
    long_polling_enable: bool = setting(
        True,
        "whether a pull that finds nothing waits as long as the client asks",
        live=True,
    )
    enable_property_filter: bool = setting(
        True,
        "whether consumers may filter by SQL92",
        live=True,
        rocketmq="false by default",
    )
    filter_data_clean_time_span: int = setting(
        24 * 3_600_000,
        "how long the SQL92 filter of a group is kept after its last consumer left",
        unit="ms",
        least=0,
        live=True,
    )
    enable_calc_filter_bit_map: bool = setting(
        False,
        "with `enableConsumeQueueExt`, whether each message's unit says which SQL92 filters of "
        "its topic match, for a Java broker that takes over the store",
        see="data-files.md#a-unit-beside-a-queue-entry",
    )
    max_error_rate_of_bloom_filter: int = setting(
        20,
        "error rate of the bloom filters; set it as for the Java broker that may "
        "take over the store",
        unit="percent",
        least=1,
        most=99,
    )
    expect_consumer_num_use_filter: int = setting(
        32,
        "number of groups with filters that the bloom filters are sized for",
        least=1,
    )
    young_queue_from_start: bool = setting(
        True,
        "RocketMQ's rule: on a queue that still has its first message, a new group begins at "
        "0, whatever start it asked for. With `false` a group begins where it asks to, and at "
        "0 on a queue if it joined before the queue's first message. CometMQ's client asks "
        "brokers not to apply the rule",
        live=True,
        rocketmq=OURS,
    )
    store_reply_message_enable: bool = setting(
        True,
        "whether answers to request messages are kept in `<cluster>_REPLY_TOPIC` as well",
        live=True,
    )
    short_polling_time_mills: int = setting(
        1_000,
        "how long such a pull waits if `longPollingEnable` is `false`",
        unit="ms",
        least=0,
        live=True,
    )
    region_id: str = setting(
        "DefaultRegion",
        "region name that is sent to producers with every answer",
    )
    trace_on: bool = setting(
        True,
        "whether producers should send message traces; sent to them with every answer",
    )
    flush_consumer_offset_interval: int = setting(
        5_000,
        "how often consumer offsets are written",
        unit="ms",
        least=1,
        live=True,
    )
    flush_delay_offset_interval: int = setting(
        10_000,
        "how often the progress of delayed delivery is written",
        unit="ms",
        least=1,
        live=True,
    )
    reject_transaction_message: bool = setting(
        False,
        "refuse prepared messages of transactions",
        live=True,
    )
    transaction_time_out: int = setting(
        6_000,
        "how long the broker waits after a prepared message was stored before it asks "
        "the producer about it; a message may carry its own value in "
        "`CHECK_IMMUNITY_TIME_IN_SECONDS`",
        unit="ms",
        least=0,
        live=True,
    )
    transaction_check_interval: int = setting(
        60_000,
        "how long until the broker asks again",
        unit="ms",
        least=1,
        live=True,
    )
    transaction_check_max: int = setting(
        15,
        "how many times the broker asks; then the message goes to `TRANS_CHECK_MAX_TIME_TOPIC`",
        least=0,
        live=True,
    )
    timer_wheel_enable: bool = setting(
        True,
        "whether messages may have a delivery time of their own (`TIMER_DELIVER_MS`, "
        "`TIMER_DELAY_SEC`, `TIMER_DELAY_MS`); messages that are already waiting are delivered "
        "even with `false`",
        live=True,
        rocketmq="a setting of RocketMQ 5",
    )
    timer_max_delay_sec: int = setting(
        259_200,
        "the longest such delay",
        unit="s",
        least=1,
        live=True,
        rocketmq="a setting of RocketMQ 5",
    )
    recall_message_enable: bool = setting(
        True,
        "whether a message that waits for its delivery time may be recalled",
        live=True,
        rocketmq="a setting of RocketMQ 5, false by default",
    )
    default_query_max_num: int = setting(
        32,
        "how many messages a query by unique key returns",
        least=1,
        live=True,
    )
    lookout_micros: int = setting(
        150,
        "how long the broker polls for the next request before it sleeps; it "
        "does so only while requests follow each other that closely. Set 0 if processor time "
        "matters more than latency",
        unit="us",
        least=0,
        most=MAX_LOOKOUT_MICROS,
        rocketmq=OURS,
    )
    acl_enable: bool = setting(
        False,
        "whether only accounts of the ACL files are served",
        see="how-to/access-control.md",
    )
    rocketmq_home: str = setting(
        "",
        "folder that has `conf/plain_acl.yml` and `conf/acl`; defaults to the folder of the store",
    )
    ha_tls_enable: bool = setting(
        False,
        "TLS on the port between master and slave; set it on both. Java brokers have none there",
        rocketmq=OURS,
    )
    drop_repeated_ids_topics: str = setting(
        "",
        "topics, separated by commas, or `*` for all but retry, dead-letter and system topics, "
        "in which a message is not stored again if its unique key was stored recently",
        rocketmq=OURS,
        see="repeated.md",
    )
    drop_repeated_ids_window_minutes: int = setting(
        60,
        "how long a unique key is remembered",
        unit="minutes",
        least=1,
        most=10080,
        rocketmq=OURS,
    )
    drop_repeated_ids_max: int = setting(
        2_000_000,
        "most unique keys that are remembered; each takes 16 to 40 bytes",
        least=1,
        rocketmq=OURS,
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.broker_name or not self.broker_cluster_name:
            raise SettingsError("brokerName", "the broker and its cluster must have a name")
        if self.is_slave != (self.broker_id > 0):
            raise SettingsError(
                "brokerId", "it must be 0 for a master, and 1 or more for a slave (brokerRole)"
            )
        self._check_address_server()
        if self.ha_tls_enable and self.tls_server_mode is TlsMode.DISABLED:
            raise SettingsError(
                "haTlsEnable",
                "it needs tlsServerMode and the certificate of this broker, which is or may become "
                "a master",
            )
        for key, address in (
            ("haMasterAddress", self.ha_master_address),
            ("takenAddress", self.taken_address),
        ):
            if address and not _is_address(address):
                raise SettingsError(key, f"it must have the form host:port, not {address!r}")

    def _check_address_server(self) -> None:
        host, port = host_and_port(self.rmq_address_server_domain, "8080")
        if not host or not port.isdecimal() or set(host) & set("/?#@%") or not _is_word(host):
            raise SettingsError("rmqAddressServerDomain", "it must have the form host or host:port")
        if not _is_word(self.rmq_address_server_sub_group):
            raise SettingsError(
                "rmqAddressServerSubGroup", "it must be the end of a URL, without spaces"
            )

    @property
    def name_servers(self) -> list[str]:
        """Addresses in ``namesrv_addr``."""
        return [each.strip() for each in self.namesrv_addr.split(";") if each.strip()]

    @property
    def address_server(self) -> str:
        """URL that is asked for the name servers; "" if none is (upstream: MixAll.getWSAddr)."""
        if not self.fetch_namesrv_addr_by_address_server or self.name_servers:
            return ""
        host, port = host_and_port(self.rmq_address_server_domain, "8080")
        return f"http://{host}:{port}/rocketmq/{self.rmq_address_server_sub_group}"

    @property
    def is_slave(self) -> bool:
        """True for a broker that copies a master's log and refuses sends."""
        return self.broker_role is BrokerRole.SLAVE

    @property
    def copies(self) -> int:
        """Number of logs that must hold a message before it is acknowledged."""
        if self.broker_role is not BrokerRole.SYNC_MASTER:
            return 1
        return max(self.in_sync_replicas, 2)


def _is_address(text: str) -> bool:
    try:
        host, port = split_address(text)
    except NotConnected:
        return False
    return host != "" and port > 0


#: Fields that may change while the broker runs.
LIVE: Final = live_fields(BrokerConfig) | live_fields(StoreConfig)


def load(values: Mapping[str, str]) -> tuple[BrokerConfig, StoreConfig, list[str]]:
    """Build the settings of broker and store from RocketMQ's property names, with notices for the
    log.

    Without ``brokerIP1`` the advertised address is derived from ``bind_address``. Raise one
    SettingsError for all unknown keys, bad values, and features that are missing.
    """
    problems: list[SettingsError] = []
    for_broker, used = convert(BrokerConfig, values, problems)
    for_store, used_by_store = convert(StoreConfig, values, problems)
    used |= used_by_store
    ignored = ignored_keys(values, used, (BrokerConfig, StoreConfig), problems)
    raise_all(problems)
    broker, store = BrokerConfig(**for_broker), StoreConfig(**for_store)
    notices = [ignored_notice(ignored)] if ignored else []
    if store.read_only_commit_log_store_paths and not store.read_only_log_directories:
        notices.append(
            "setting readOnlyCommitLogStorePaths has no effect, as in RocketMQ: storePathCommitLog "
            "names one directory, without a comma"
        )
    if not any(normalise(key) == "brokerip1" for key in values):
        broker = replace(broker, broker_ip1=reachable_address(broker.bind_address))
    warning = advertising_problem(broker)
    if warning:
        notices.append(warning)
    if store.transient_store_pool_enable:
        notices.append(_pool_notice(broker, store))
        if broker.is_slave:
            store = replace(store, transient_store_pool_enable=False)
    return broker, store, notices


def _pool_notice(broker: BrokerConfig, store: StoreConfig) -> str:
    """Return the notice about the transient pool. The setting works under the same conditions as
    upstream (isTransientStorePoolEnable)."""
    if broker.is_slave or not store.answers_before_write:
        return (
            "setting transientStorePoolEnable has no effect with flushDiskType=SYNC_FLUSH or "
            "brokerRole=SLAVE and is ignored"
        )
    late_ms = store.commit_interval_commit_log + store.commit_commit_log_thorough_interval
    return (
        "transientStorePoolEnable: sends are acknowledged before they are written; if this "
        f"process is killed, the sends of the last {late_ms} ms are lost, and while the disk is "
        "full all that are waiting"
    )


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Change of settings that a running broker can carry out (see :func:`plan_change`).

    ``changed`` are the keys whose values differ, ``texts`` the values of all keys as they were
    sent, ``ignored`` the keys without effect.
    """

    broker: BrokerConfig
    store: StoreConfig
    changed: tuple[str, ...]
    texts: Mapping[str, str]
    ignored: tuple[str, ...]


def plan_change(
    config: BrokerConfig, store: StoreConfig, values: Mapping[str, str]
) -> PlannedChange:
    """Return the change of ``config`` and ``store`` that ``values`` ask for.

    Values that are in force already are accepted for every key. Raise one SettingsError for all
    unknown keys, bad values, and settings that take effect only at a start.
    """
    problems: list[SettingsError] = []
    used: set[str] = set()
    changed: list[str] = []
    for key, value in values.items():
        single = {key: value}
        for_broker, used_here = convert(BrokerConfig, single, problems)
        for_store, used_by_store = convert(StoreConfig, single, problems)
        used |= used_here | used_by_store
        differing = [
            field
            for part, taken in ((config, for_broker), (store, for_store))
            for field, wanted in taken.items()
            if getattr(part, field) != wanted
        ]
        if differing and not LIVE.issuperset(differing):
            problem = (
                "it cannot be changed while the broker runs: set it in the property file and "
                "restart"
            )
            problems.append(SettingsError(key, problem, is_unusable=False))
        elif differing:
            changed.append(key)
    ignored = ignored_keys(values, used, (BrokerConfig, StoreConfig), problems)
    raise_all(problems)
    return PlannedChange(
        build(BrokerConfig, values, config)[0],
        build(StoreConfig, values, store)[0],
        tuple(changed),
        values,
        tuple(ignored),
    )


def apply(config: BrokerConfig, store: StoreConfig, planned: PlannedChange) -> list[str]:
    """Carry out a planned change on the objects that the broker's parts share; return the names of
    the changed fields."""
    found: list[str] = []
    for field in changed_fields(planned.broker, config):
        setattr(config, field, getattr(planned.broker, field))
        found.append(field)
    for field in changed_fields(planned.store, store):
        setattr(store, field, getattr(planned.store, field))
        found.append(field)
    return list(dict.fromkeys(found))


def change(config: BrokerConfig, store: StoreConfig, values: Mapping[str, str]) -> list[str]:
    """Change settings of a running broker, all of ``values`` or none; return the changed fields.

    Raise as :func:`plan_change` does.
    """
    return apply(config, store, plan_change(config, store, values))


def log_file_bytes(directories: Iterable[str]) -> int:
    """Return the size of the log files in directories; 0 if it cannot be determined.

    A file is as long as the distance between its offset and the next file's. A single file has its
    full length from the start.
    """
    try:
        found = {
            at: os.path.join(directory, name)
            for directory in directories
            if os.path.isdir(directory)
            for name in os.listdir(directory)
            if (at := file_offset(name)) is not None
        }
        bases = sorted(found)
        if len(bases) > 1:
            return min(after - base for base, after in pairwise(bases))
        size = os.path.getsize(found[bases[0]]) if bases else 0
        return size if size >= 4096 else 0  # a crash may have interrupted its creation
    except OSError:  # the start reports what is wrong with the directory
        return 0


def kept_path(root: str) -> str:
    """Return the path of the file with the changed settings of the store directory ``root``."""
    return os.path.join(root, "config", SETTINGS_FILE)


def read_kept(root: str, files: Files | None = None) -> dict[str, str]:
    """Return the changed settings of the store directory ``root``.

    ``files`` defaults to the operating system's. Raise as :func:`read_kept_settings` does.
    """
    return read_kept_settings(kept_path(root), files or PosixFiles())


def apply_kept(config: BrokerConfig, store: StoreConfig, files: Files | None = None) -> None:
    """Apply the changed settings of an earlier run to ``config`` and ``store``.

    Keys that cannot be changed while a broker runs are left out, with a warning. Raise as
    :func:`read_kept` does, and SettingsError for a value that cannot be used.
    """
    root = store.store_path_root_dir
    for key, value in read_kept(root, files).items():
        try:
            planned = plan_change(config, store, {key: value})
        except SettingsError as error:
            if error.is_unusable:
                raise SettingsError(key, error.problem, where=kept_path(root)) from None
            log.warning("kept_setting_ignored key=%s reason=%s", key, error.problem)
            continue
        if apply(config, store, planned):
            path = kept_path(root)
            log.warning("kept_setting_overrides key=%s value=%s path=%s", key, value, path)


def listening_ports(config: BrokerConfig) -> dict[int, str]:
    """Return the ports on which a broker will listen, with the settings that they come from.

    Ports that the system picks are left out.
    """
    found = {config.listen_port: "listenPort"}
    if config.listen_port > VIP_DISTANCE:
        vip_port = config.listen_port - VIP_DISTANCE
        found[vip_port] = f"listenPort, which needs the port {VIP_DISTANCE} below it too"
    if not config.is_slave:
        found[config.ha_listen_port] = "haListenPort"
    found.pop(0, None)
    return found


def reachable_address(bind_address: str) -> str:
    """Return the address that others connect to if a server listens on ``bind_address``."""
    if bind_address not in ("0.0.0.0", "::"):
        return bind_address
    family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it selects the address of the default
            # route.
            probe.connect(("2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "::1" if family == socket.AF_INET6 else LOOPBACK


def host_and_port(address: str, default_port: str) -> tuple[str, str]:
    """Return the parts of an address, which may lack its port. An IPv6 host keeps its brackets."""
    host, colon, port = address.rpartition(":")
    return (host, port) if colon and not address.endswith("]") else (address, default_port)


def _is_word(text: str) -> bool:
    """Return whether a text may be a part of a URL without being quoted."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def resolve(host: str) -> str:
    """Return ``host`` as an IP address. Raise SettingsError if it has none."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError("brokerIP1", f"cannot resolve {host!r}: {error}") from None
    return str(found[0][4][0])


def join(host: str, port: int) -> str:
    """Return ``host`` and ``port`` as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertising_problem(config: BrokerConfig) -> str | None:
    """Return why others cannot reach this broker at the address it advertises; None if they can."""
    listens_beyond = not is_loopback(config.bind_address)
    advertises_beyond = not is_loopback(config.broker_ip1)
    if config.broker_ip1 in ("0.0.0.0", "::"):
        return (
            f"brokerIP1 {config.broker_ip1} is not an address that clients can connect to: set "
            "the address of this machine"
        )
    if listens_beyond and not advertises_beyond:
        return (
            f"brokerIP1 {config.broker_ip1} is reachable from this machine only, although the "
            f"broker listens on {config.bind_address}: set brokerIP1 to the address that clients "
            "use"
        )
    if advertises_beyond and not listens_beyond:
        return (
            f"clients connect to {config.broker_ip1}, but this broker listens on "
            f"{config.bind_address} only: set bindAddress=0.0.0.0 to accept them"
        )
    return None
