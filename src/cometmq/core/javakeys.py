"""Keys of RocketMQ's property files for which CometMQ has no setting: the meaning of each in the
Java servers, and why it has no effect here (upstream: BrokerConfig.java, MessageStoreConfig.java,
NettyServerConfig.java, NettyClientConfig.java, NamesrvConfig.java of 4.9.7).

Keys without effect are accepted, and one notice names them. A few keys have values that request
something CometMQ does not have. To ignore such a value would change what is stored or served, so it
is an error that says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.core.settings import known_keys, normalise, unknown_keys

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class JavaKey:
    """A key that has no effect here: its ``meaning`` in RocketMQ, and the ``reason``.

    If ``accepted`` is set, other values are errors, and ``reason`` says what to do.
    """

    name: str
    meaning: str
    reason: str
    accepted: tuple[str, ...] = ()

    def accepts(self, value: str) -> bool:
        """Return whether the value may be ignored; case does not matter."""
        return not self.accepted or value.lower() in self.accepted


#: Keys without effect, by reason: lines of ``key: meaning in RocketMQ``.
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "one event loop serves all requests, so there are no pools": """
        sendMessageThreadPoolNums: threads that serve sends
        putMessageFutureThreadPoolNums: threads that complete sends
        pullMessageThreadPoolNums: threads that serve pulls
        processReplyMessageThreadPoolNums: threads that serve answers to request messages
        queryMessageThreadPoolNums: threads that serve queries
        adminBrokerThreadPoolNums: threads that serve administration
        clientManageThreadPoolNums: threads that serve clients' requests about themselves
        consumerManageThreadPoolNums: threads that serve offsets and consumer lists
        heartbeatThreadPoolNums: threads that serve heartbeats
        endTransactionThreadPoolNums: threads that serve ends of transactions
        serverWorkerThreads: threads that run Netty's handlers
        serverCallbackExecutorThreads: threads that serve requests without a pool of their own
        serverSelectorThreads: threads that read from connections
        clientWorkerThreads: threads of outgoing connections
        clientCallbackExecutorThreads: threads that serve answers to outgoing requests
        scheduleAsyncDeliverMaxPendingLimit: most delayed messages that are being delivered
        scheduleAsyncDeliverMaxResendNum2Blocked: failed deliveries until a delay level pauses
        enableScheduleAsyncDeliver: deliver delayed messages without waiting for each
        timerGetMessageThreadNum: threads that read timer messages
        timerPutMessageThreadNum: threads that write timer messages
        timerEnableDisruptor: pass timer messages between threads by a ring buffer
        useReentrantLockWhenPutMessage: the kind of lock round an append
        debugLockEnable: log waits for the append lock
    """,
    "requests do not queue for threads, so none is dropped from a queue": """
        sendThreadPoolQueueCapacity: most sends that wait for a thread
        putThreadPoolQueueCapacity: most sends that wait for their completion
        pullThreadPoolQueueCapacity: most pulls that wait for a thread
        replyThreadPoolQueueCapacity: most answers to request messages that wait for a thread
        queryThreadPoolQueueCapacity: most queries that wait for a thread
        clientManagerThreadPoolQueueCapacity: most client requests that wait for a thread
        consumerManagerThreadPoolQueueCapacity: most consumer requests that wait for a thread
        heartbeatThreadPoolQueueCapacity: most heartbeats that wait for a thread
        endTransactionPoolQueueCapacity: most ends of transactions that wait for a thread
        waitTimeMillsInSendQueue: age at which a waiting send is dropped
        waitTimeMillsInPullQueue: age at which a waiting pull is dropped
        waitTimeMillsInHeartbeatQueue: age at which a waiting heartbeat is dropped
        waitTimeMillsInTransactionQueue: age at which a waiting end of a transaction is dropped
        brokerFastFailureEnable: drop requests that waited too long
        osPageCacheBusyTimeOutMills: time of one append after which sends are refused
        serverOnewaySemaphoreValue: most one-way requests in flight
        serverAsyncSemaphoreValue: most asynchronous requests in flight
        clientOnewaySemaphoreValue: most outgoing one-way requests in flight
        clientAsyncSemaphoreValue: most outgoing asynchronous requests in flight
    """,
    "connections have buffers and limits of their own": """
        serverSocketSndBufSize: send buffer of a connection
        serverSocketRcvBufSize: receive buffer of a connection
        serverSocketBacklog: connections that wait to be accepted
        serverPooledByteBufAllocatorEnable: take Netty's buffers from a pool
        useEpollNativeSelector: use Netty's epoll transport
        writeBufferLowWaterMark: bytes below which a connection is writable again
        writeBufferHighWaterMark: bytes above which a connection is not writable
        clientCloseSocketIfTimeout: close an outgoing connection after a timeout
        connectTimeoutMillis: how long an outgoing connection may take
        channelNotActiveInterval: how often inactive connections are looked for
        clientChannelMaxIdleTimeSeconds: idle time after which an outgoing connection is closed
        clientSocketSndBufSize: send buffer of an outgoing connection
        clientSocketRcvBufSize: receive buffer of an outgoing connection
        clientPooledByteBufAllocatorEnable: take buffers of outgoing connections from a pool
        transferMsgByHeap: copy messages to the heap before they are sent
    """,
    "CometMQ registers at its own pace, with all that changed": """
        registerBrokerTimeoutMills: how long a registration may take
        registerNameServerPeriod: how often the broker registers
        forceRegister: register even if nothing changed
        compressedRegister: compress registrations
    """,
    "the log is written with pwrite, not through mapped files": """
        warmMapedFileEnable: touch the pages of a new log file
        flushLeastPagesWhenWarmMapedFile: pages after which a warm-up is flushed
        flushCommitLogTimed: flush the log at fixed times
        fastFailIfNoBufferInStorePool: refuse sends if no buffer of the transient pool is free
        messageIndexSafe: keep the index's time in the checkpoint (the index is always checked here)
        putMsgIndexHightWater: messages behind at which index building is slowed
        flushConsumeQueueLeastPages: pages of a consume queue that make a flush worth it
        checkCRCOnRecover: check records' checksums at a start (always done here)
        diskFallRecorded: count the bytes that consumers lag behind
    """,
    "files are deleted when no reader needs them, at CometMQ's own pace": """
        cleanResourceInterval: how often expired files are looked for
        deleteCommitLogFilesInterval: pause between two deleted log files
        deleteConsumeQueueFilesInterval: pause between two deleted queue files
        destroyMapedFileIntervalForcibly: time after which a used file is deleted all the same
        redeleteHangedFileInterval: time until the deletion of a used file is tried again
    """,
    "replication has its own heartbeats, within the protocol": """
        haSendHeartbeatInterval: pause after which a master sends an empty transfer
        haHousekeepingInterval: silence after which a slave's connection is closed
        offsetCheckInSlave: correct offsets of pulls at a slave too
    """,
    "statistics are always kept, and logged differently": """
        highSpeedMode: nothing, since RocketMQ 4
        isolateLogEnable: log each broker of a process on its own
        enableDetailStat: keep detailed statistics
        autoDeleteUnusedStats: drop the statistics of deleted topics and groups
        flushConsumerOffsetHistoryInterval: nothing, since RocketMQ 4
        commercialEnable: log figures for billing
        commercialTimerCount: billing: calls counted for a delayed message
        commercialTransCount: billing: calls counted for a transaction
        commercialBigCount: billing: calls counted for a large message
        commercialBaseCount: billing: calls counted for a message
        enableScheduleMessageStats: keep statistics of delayed messages
        maxDelayTime: nothing, since RocketMQ 4
    """,
    "SQL92 filters are evaluated on the messages themselves": """
        filterSupportRetry: apply SQL92 filters to retried messages too
        filterLookahead: nothing in 4.9
        filterServerNums: filter server processes to start (nothing starts a process here)
    """,
    "reads of old messages take turns instead": """
        disableConsumeIfConsumerReadSlowly: switch off groups that are far behind
        consumerFallbehindThreshold: bytes behind at which a group is switched off
    """,
    "light queues are not supported": """
        maxLmqConsumeQueueNum: most light queues
    """,
    "DLedger is not supported; see enableDLegerCommitLog": """
        storePathDLedgerCommitLog: directory of DLedger's log
        dLegerGroup: DLedger's name of the group of brokers
        dLegerPeers: addresses of the brokers of the group
        dLegerSelfId: DLedger's name of this broker
        preferredLeaderId: the broker that should lead
        enableBatchPush: push several entries at once
        isEnableBatchPush: push several entries at once
    """,
    "RocketMQ 4.9 does not use it either": """
        duplicationEnable: share log files between brokers; never finished
        storePathConsumeQueue: old; consumequeue is always below storePathRootDir
        storePathIndex: old; index is always below storePathRootDir
        storeCheckpoint: old; checkpoint is always below storePathRootDir
        abortFile: old; abort is always below storePathRootDir
        mapedFileSizeCommitLog: old spelling; write mappedFileSizeCommitLog
        mapedFileSizeConsumeQueue: old spelling; write mappedFileSizeConsumeQueue
        checkTransactionMessageEnable: old; transactions are always checked
        checkTransactionMessageThreadPoolNums: old; threads of transaction checks
        checkTransactionMessageTimerInterval: old; write transactionCheckInterval
        checkTransactionMessageAtleastInterval: old; write transactionTimeOut
        sendMessageTimeoutMills: old; clients decide this
        offsetCheckpointInterval: old
        bitMapLengthConsumeQueueExt: replaced by the size of the bloom filters
        enableControllerMode: the controller of RocketMQ 5
    """,
    "the place follows from where the file is": """
        brokerConfigPath: file that updateBrokerConfig writes to
        configStorePath: file that updateNamesrvConfig writes to
        configBlackList: settings that no request may change
    """,
    "timer files have RocketMQ's fixed layout": """
        mappedFileSizeTimerLog: size of a file of the timer log
        timerPrecisionMs: length of a slot of the timer wheel
        timerRollWindowSlot: slots after which a timer message is scheduled again
        timerFlushIntervalMs: how often timer files are synced
        timerEnableCheckMetrics: compare the numbers of waiting timer messages
        timerCheckMetricsWhen: the hour of that comparison
        timerSkipUnknownError: go on after an unknown error
        timerWarmEnable: touch the pages of the timer files
        timerEnableRetryUntilSuccess: repeat a failed delivery for ever
        timerCongestNumEachSlot: most messages of a slot
        timerMetricSmallThreshold: topics with fewer waiting messages are compared together
        timerProgressLogIntervalMs: how often the timer's progress is logged
    """,
    "a name server has no test environment": """
        clusterTest: ask the name servers of a test environment for unknown topics
        productEnvName: name of that environment
    """,
}

_OFF: Final = ("false", "no", "off", "0")

_REFUSED: Final = (
    JavaKey(
        "enableDLegerCommitLog",
        "keep the log by DLedger's consensus",
        "DLedger is not supported (decision 0079), and its log has another format: let consumers "
        "finish on the old brokers, and start with an empty store, enableDLegerCommitLog=false, "
        "and brokerRole=SYNC_MASTER with slaves for the copies (docs/slaves.md)",
        _OFF,
    ),
    JavaKey(
        "enableLmq",
        "keep light queues",
        "light queues are not supported (decision 0011): set false",
        _OFF,
    ),
    JavaKey(
        "enableMultiDispatch",
        "list a message in several queues",
        "light queues are not supported (decision 0011): set false",
        _OFF,
    ),
    JavaKey(
        "messageStorePlugIn",
        "Java classes that wrap the store",
        "CometMQ cannot run Java classes, and without them other messages would be stored: leave "
        "it empty",
        ("",),
    ),
)


def _all_keys() -> dict[str, JavaKey]:
    found = {normalise(key.name): key for key in _REFUSED}
    for reason, lines in _WITHOUT_EFFECT.items():
        for line in lines.strip().splitlines():
            name, _, meaning = line.strip().partition(": ")
            found[normalise(name)] = JavaKey(name, meaning, reason)
    return found


#: All keys, by their name without case and separators.
JAVA_KEYS: Final[Mapping[str, JavaKey]] = _all_keys()


def ignored_keys(
    values: Mapping[str, str],
    used: Collection[str],
    classes: Iterable[type[DataclassInstance]],
    problems: list[SettingsError],
) -> list[str]:
    """Return the keys of ``values`` that have no effect here, for :func:`ignored_notice`.

    Keys in ``used`` are left out, and keys of _REFUSED with an accepted value.
    Append an error to ``problems`` for each unknown key, with suggestions from the fields of
    ``classes``, and for each value that must not be ignored.
    """
    ignored, unknown = [], []
    for key, value in values.items():
        java = JAVA_KEYS.get(normalise(key))
        if key in used:
            continue
        if java is None:
            unknown.append(key)
        elif not java.accepts(value):
            problems.append(SettingsError(key, f"{value!r} is not supported: {java.reason}"))
        elif not java.accepted:
            ignored.append(key)
    known = [key for cls in classes for key in known_keys(cls)]
    problems += unknown_keys(unknown, [*known, *(key.name for key in JAVA_KEYS.values())])
    return ignored


def ignored_notice(keys: Iterable[str]) -> str:
    """Return the one notice about keys without effect."""
    return (
        f"these settings have no effect in CometMQ and are ignored: {', '.join(keys)} "
        "(cometmq config explain KEY says why)"
    )
