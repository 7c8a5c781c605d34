"""Settings of a broker, beside those of its store (upstream: BrokerConfig.java,
NettyServerConfig.java).

A RocketMQ property file is accepted unchanged. Keys that only tune threads, pools and garbage
collection of the Java broker are ignored with a notice. A value that requests a feature which this
broker does not have is an error, because ignoring it would change the broker's behaviour silently.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from cometmq.core.errors import SettingsError
from cometmq.core.settings import SECRET, build, changed_fields, normalise, reject_unknown
from cometmq.net.outgoing import OutgoingFields
from cometmq.net.tls import ClientAuth, TlsMode
from cometmq.store.config import StoreConfig

LOOPBACK: Final = "127.0.0.1"
#: A Java slave accepts transfers up to its buffer of 4 MiB.
TRANSFER_BATCH_MAX_BYTES: Final = 2 << 20
#: Longer polling only burns processor time: a wake-up takes a twentieth of this.
MAX_LOOKOUT_MICROS: Final = 1_000


class BrokerRole(Enum):
    """Role of a broker among those with its name."""

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
class BrokerConfig(OutgoingFields):
    """Settings of one broker, built from text by core/settings.py.

    ``bind_address`` is the address to listen on, ``broker_ip1`` the one that clients connect to.
    ``remote_admin_enable`` lets other machines change topics, groups and settings.
    ``lookout_micros`` is the time in microseconds that the event loop polls for the next request
    before it sleeps, while requests follow each other closely; 0 disables polling.
    ``young_queue_from_start`` is upstream's rule that a new group begins at 0 if a queue's first
    message is still in memory, whatever policy the group has; a client may disable it for itself.
    ``drop_repeated_ids_topics`` are topics (separated by commas, ``*`` for all user topics) in
    which a message is not stored again if its unique key was stored within the window;
    ``drop_repeated_ids_max`` limits the number of keys remembered (broker/dedup).

    ``ha_listen_port`` 0 means ``listen_port`` + 1. A slave connects to ``ha_master_address``, or if
    that is empty, to the master that name servers list under its name. Until
    ``start_accept_send_request_time_stamp`` (ms since the epoch) the broker refuses sends.
    ``taken_address`` is a former master's address, on which it listens too and under which it
    registers. ``ha_rejoin`` decides what a slave does if the logs differ. ``in_sync_replicas`` is
    the number of logs, its own included, that must hold a message before a SYNC_MASTER acknowledges
    it; it waits for one slave at least. ``ha_whole_history`` sends an empty slave the whole log
    instead of its last file alone.

    All parts of a broker share one object. An administrator may change the fields in LIVE at run
    time, so each use must read them again. The others never change.
    """

    bind_address: str = LOOPBACK
    listen_port: int = 10911
    broker_ip1: str = LOOPBACK
    broker_ip2: str = ""
    broker_name: str = "broker-a"
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    namesrv_addr: str = ""
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_listen_port: int = 0
    ha_master_address: str = ""
    taken_address: str = ""
    ha_transfer_batch_size: int = 256 << 10
    ha_slave_fallbehind_max: int = 256 << 20
    ha_whole_history: bool = True
    ha_rejoin: HaRejoin = HaRejoin.REFUSE
    max_ha_transfer_byte_in_second: int = 0
    in_sync_replicas: int = 1
    slave_timeout: int = 3_000
    slave_read_enable: bool = True
    broker_permission: int = 6
    start_accept_send_request_time_stamp: int = 0
    remote_admin_enable: bool = False
    default_topic_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    notify_consumer_ids_changed_enable: bool = True
    max_message_size: int = 4 << 20
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    long_polling_enable: bool = True
    enable_property_filter: bool = True
    filter_data_clean_time_span: int = 24 * 3_600_000
    max_error_rate_of_bloom_filter: int = 20
    expect_consumer_num_use_filter: int = 32
    young_queue_from_start: bool = True
    store_reply_message_enable: bool = True
    short_polling_time_mills: int = 1_000
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    flush_consumer_offset_interval: int = 5_000
    flush_delay_offset_interval: int = 10_000
    reject_transaction_message: bool = False
    transaction_time_out: int = 6_000
    transaction_check_interval: int = 60_000
    transaction_check_max: int = 15
    timer_wheel_enable: bool = True
    timer_max_delay_sec: int = 259_200
    recall_message_enable: bool = True
    default_query_max_num: int = 32
    lookout_micros: int = 150
    acl_enable: bool = False
    rocketmq_home: str = ""
    tls_server_mode: TlsMode = TlsMode.DISABLED
    tls_server_cert_path: str = ""
    tls_server_key_path: str = ""
    tls_server_trust_cert_path: str = ""
    tls_server_need_client_auth: ClientAuth = ClientAuth.NONE
    use_tls: bool | None = None
    tls_enable: bool | None = None
    tls_client_trust_cert_path: str = ""
    tls_client_cert_path: str = ""
    tls_client_key_path: str = ""
    tls_client_key_password: str = field(default="", repr=False, metadata=SECRET)
    tls_client_auth_server: bool = True
    tls_client_check_host_name: bool = True
    credentials_path: str = ""
    ha_tls_enable: bool = False
    drop_repeated_ids_topics: str = ""
    drop_repeated_ids_window_minutes: int = 60
    drop_repeated_ids_max: int = 2_000_000

    def __post_init__(self) -> None:
        _check_port("listenPort", self.listen_port)
        if self.default_topic_queue_nums < 1:
            raise SettingsError("defaultTopicQueueNums", "a topic needs at least one queue")
        if not 0 <= self.lookout_micros <= MAX_LOOKOUT_MICROS:
            raise SettingsError("lookoutMicros", f"it must be from 0 to {MAX_LOOKOUT_MICROS}")
        if not 1 <= self.max_error_rate_of_bloom_filter <= 99:
            raise SettingsError("maxErrorRateOfBloomFilter", "it must be a percentage from 1 to 99")
        if self.expect_consumer_num_use_filter < 1:
            raise SettingsError("expectConsumerNumUseFilter", "it must be at least 1")
        if min(self.transaction_time_out, self.transaction_check_max) < 0:
            raise SettingsError(
                "transactionTimeOut", "it and transactionCheckMax must not be negative"
            )
        if self.transaction_check_interval < 1:
            raise SettingsError("transactionCheckInterval", "it must be at least 1 ms")
        if self.timer_max_delay_sec < 1:
            raise SettingsError("timerMaxDelaySec", "it must be at least 1 s")
        if not self.broker_name or not self.broker_cluster_name:
            raise SettingsError("brokerName", "the broker and its cluster must have a name")
        _check_repeats(self.drop_repeated_ids_window_minutes, self.drop_repeated_ids_max)
        self._check_replication()

    def _check_replication(self) -> None:
        if self.broker_id < 0 or self.is_slave != (self.broker_id > 0):
            raise SettingsError(
                "brokerId", "it must be 0 for a master, and 1 or more for a slave (brokerRole)"
            )
        if not 1 <= self.ha_transfer_batch_size <= TRANSFER_BATCH_MAX_BYTES:
            limit = TRANSFER_BATCH_MAX_BYTES
            raise SettingsError("haTransferBatchSize", f"it must be from 1 to {limit} bytes")
        if self.ha_tls_enable and self.tls_server_mode is TlsMode.DISABLED:
            raise SettingsError(
                "haTlsEnable",
                "it needs tlsServerMode and the certificate of this broker, which is or may become "
                "a master",
            )
        if self.in_sync_replicas < 1:
            raise SettingsError("inSyncReplicas", "it must be at least 1: the master counts as one")
        if min(self.max_ha_transfer_byte_in_second, self.slave_timeout) < 0:
            raise SettingsError(
                "maxHaTransferByteInSecond", "it and slaveTimeout must not be negative"
            )
        for key, address in (
            ("haMasterAddress", self.ha_master_address),
            ("takenAddress", self.taken_address),
        ):
            host, _, port = address.rpartition(":")
            if address and not (host and port.isdecimal()):
                raise SettingsError(key, "it must have the form host:port")

    @property
    def name_servers(self) -> list[str]:
        """Addresses in ``namesrv_addr``."""
        return [each.strip() for each in self.namesrv_addr.split(";") if each.strip()]

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


#: Fields that may change while the broker runs.
LIVE: Final = frozenset(
    {
        "broker_permission",
        "start_accept_send_request_time_stamp",
        "default_topic_queue_nums",
        "auto_create_topic_enable",
        "auto_create_subscription_group",
        "notify_consumer_ids_changed_enable",
        "max_message_size",
        "long_polling_enable",
        "enable_property_filter",
        "filter_data_clean_time_span",
        "young_queue_from_start",
        "store_reply_message_enable",
        "short_polling_time_mills",
        "flush_consumer_offset_interval",
        "flush_delay_offset_interval",
        "reject_transaction_message",
        "transaction_time_out",
        "transaction_check_interval",
        "transaction_check_max",
        "timer_wheel_enable",
        "timer_max_delay_sec",
        "recall_message_enable",
        "default_query_max_num",
        "slave_read_enable",
        "slave_timeout",
        "ha_rejoin",
    }
)

#: Keys that tune threads, pools and files of the Java broker, but not its behaviour.
_IGNORED: Final = """
    registerBrokerTimeoutMills highSpeedMode transferMsgByHeap isolateLogEnable
    sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
    processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums
    clientManageThreadPoolNums consumerManageThreadPoolNums heartbeatThreadPoolNums
    endTransactionThreadPoolNums sendThreadPoolQueueCapacity putThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
    clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
    heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity
    waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInTransactionQueue brokerFastFailureEnable enableDetailStat autoDeleteUnusedStats
    flushConsumerOffsetHistoryInterval commercialEnable commercialTimerCount commercialTransCount
    commercialBigCount commercialBaseCount maxDelayTime registerNameServerPeriod forceRegister
    compressedRegister
    filterSupportRetry enableCalcFilterBitMap filterLookahead
    disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold
    serverWorkerThreads serverSelectorThreads serverOnewaySemaphoreValue serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverSocketSndBufSize
    serverSocketRcvBufSize serverSocketBacklog serverPooledByteBufAllocatorEnable
    useEpollNativeSelector writeBufferLowWaterMark writeBufferHighWaterMark
    clientCloseSocketIfTimeout clientWorkerThreads clientOnewaySemaphoreValue connectTimeoutMillis
    clientCallbackExecutorThreads channelNotActiveInterval clientAsyncSemaphoreValue
    clientChannelMaxIdleTimeSeconds clientSocketSndBufSize clientSocketRcvBufSize
    clientPooledByteBufAllocatorEnable
    debugLockEnable osPageCacheBusyTimeOutMills diskFallRecorded warmMapedFileEnable
    flushLeastPagesWhenWarmMapedFile putMsgIndexHightWater cleanResourceInterval
    checkCRCOnRecover deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
    flushConsumeQueueLeastPages destroyMapedFileIntervalForcibly redeleteHangedFileInterval
    haSendHeartbeatInterval haHousekeepingInterval
    messageIndexSafe flushCommitLogTimed
    offsetCheckInSlave fastFailIfNoBufferInStorePool useReentrantLockWhenPutMessage
    enableScheduleMessageStats enableBatchPush isEnableBatchPush
    maxLmqConsumeQueueNum enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked mappedFileSizeConsumeQueueExt
    bitMapLengthConsumeQueueExt storePathDLedgerCommitLog dLegerGroup dLegerPeers dLegerSelfId
    preferredLeaderId brokerConfigPath configStorePath
    mappedFileSizeTimerLog timerPrecisionMs timerRollWindowSlot timerFlushIntervalMs
    timerGetMessageThreadNum timerPutMessageThreadNum timerEnableDisruptor timerEnableCheckMetrics
    timerCheckMetricsWhen timerSkipUnknownError timerWarmEnable timerEnableRetryUntilSuccess
    timerCongestNumEachSlot timerMetricSmallThreshold timerProgressLogIntervalMs
"""

#: Keys that are accepted only with values that need no missing feature.
_ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "enableDLegerCommitLog": ("false",),
    "duplicationEnable": ("false",),
    "enableConsumeQueueExt": ("false",),
    "enableLmq": ("false",),
    "enableMultiDispatch": ("false",),
    "fetchNamesrvAddrByAddressServer": ("false",),
    "filterServerNums": ("0",),
    "messageStorePlugIn": ("",),
    "readOnlyCommitLogStorePaths": ("",),
}
_REASONS: Final[Mapping[str, str]] = {
    "enableConsumeQueueExt": "; filters are evaluated on the message itself, without these files",
}


def load(values: Mapping[str, str]) -> tuple[BrokerConfig, StoreConfig, list[str]]:
    """Build the settings of broker and store from RocketMQ's property names, with notices for the
    log.

    Without ``brokerIP1`` the advertised address is derived from ``bind_address``. Raise
    SettingsError for an unknown key, a bad value, or a feature that is missing.
    """
    broker, used = build(BrokerConfig, values)
    store, used_by_store = build(StoreConfig, values)
    used |= used_by_store
    ignored = {normalise(key) for key in _IGNORED.split()}
    notices: list[str] = []
    for key, value in values.items():
        if key in used:
            continue
        if normalise(key) in ignored:
            used.add(key)
            notices.append(f"setting {key} has no effect in CometMQ and is ignored")
        elif _is_harmless(key, value):
            used.add(key)
    reject_unknown(values, used, (BrokerConfig, StoreConfig))
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


def change(config: BrokerConfig, store: StoreConfig, values: Mapping[str, str]) -> list[str]:
    """Change settings of a running broker, all of ``values`` or none; return the changed fields.

    Values that are in force already are accepted for every key. Raise SettingsError for an unknown
    key, a bad value, or a setting that takes effect only at a start.
    """
    changed: list[str] = []
    for key, value in values.items():
        wanted, used = build(BrokerConfig, {key: value}, config)
        wanted_store, used_by_store = build(StoreConfig, {key: value}, store)
        reject_unknown({key: value}, used | used_by_store, (BrokerConfig, StoreConfig))
        differing = changed_fields(wanted, config)
        is_live = LIVE.issuperset(differing) if used else wanted_store == store
        if not is_live:
            raise SettingsError(
                key,
                "it cannot be changed while the broker runs: set it in the property file and "
                "restart",
            )
        changed += differing
    wanted, _ = build(BrokerConfig, values, config)
    for name in changed:
        setattr(config, name, getattr(wanted, name))
    return changed


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
    listens_beyond = not _is_loopback(config.bind_address)
    advertises_beyond = not _is_loopback(config.broker_ip1)
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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_harmless(key: str, value: str) -> bool:
    for name, accepted in _ONLY.items():
        if normalise(name) == normalise(key):
            if value.lower() in [text.lower() for text in accepted]:
                return True
            allowed = " or ".join(repr(text) for text in accepted)
            reason = _REASONS.get(name, "")
            raise SettingsError(key, f"{value!r} is not supported yet: only {allowed}{reason}")
    return False


def _check_port(key: str, port: int) -> None:
    if not 0 <= port <= 65_535:
        raise SettingsError(key, f"{port} is not a port (0 to 65535; 0 picks a free one)")


def _check_repeats(window_minutes: int, ids_max: int) -> None:
    if not 1 <= window_minutes <= 7 * 24 * 60:
        raise SettingsError("dropRepeatedIdsWindowMinutes", "it must be from 1 to 10080 (a week)")
    if ids_max < 1:
        raise SettingsError("dropRepeatedIdsMax", "it must be at least 1")
