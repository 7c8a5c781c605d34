"""Administration of the broker itself: its state, and the removal of expired log files and queues
on request (upstream: AdminBrokerProcessor.java; the keys of the state:
prepareRuntimeInfo, StoreStatsService.java; DefaultMessageStore.cleanExpiredConsumerQueue)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.broker.lookup import find_record
from cometmq.core.clock import Slices
from cometmq.core.errors import BadRequest, StoreCorrupt, StoreError
from cometmq.message.names import is_system_topic
from cometmq.protocol.bodies import BrokerStatsData, BrokerStatsItem, KvTable
from cometmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode, version_name
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import Reply
from cometmq.store.files import DiskSpace, least_used

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import ViewBrokerStatsData
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

_MAX_INT: Final = 2_147_483_647
_PUT_TIMES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_SIZE_UNITS: Final = "KMGTPE"
_TOPICS_A_SLICE: Final = 16
#: Fixed values of keys that describe Java's thread pools. Tools read them, although no request of
#: this broker waits for a thread.
_WITHOUT_POOLS: Final = {
    "sendThreadPoolQueueSize": "0",
    "sendThreadPoolQueueCapacity": "10000",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "pullThreadPoolQueueCapacity": "100000",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "20000",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "pageCacheLockTimeMills": "0",
    "dispatchMaxBuffer": "0",
    "getMessageEntireTimeMax": "0",
}


class Described(Protocol):
    """Part of the broker that adds entries to its runtime information."""

    def facts(self) -> Mapping[str, str]:
        """Return the entries by key."""
        ...


@dataclass(frozen=True, slots=True)
class Disks:
    """Space on the device of each directory that gets log files, and on that of the queues."""

    by_log_directory: Mapping[str, DiskSpace]
    queues: DiskSpace

    @property
    def log(self) -> DiskSpace:
        """Space on the least used device of the log."""
        return least_used(self.by_log_directory.values())


async def measure_disks(store: MessageStore) -> Disks:
    """Measure the devices in a thread, because a network file system may be slow. A device that
    cannot be measured counts as full, with a size of 0."""
    config = store.config

    def measure(path: str) -> DiskSpace:
        try:
            return store.files.disk_space(path)
        except OSError:
            return DiskSpace(0, 0, 0)

    return Disks(
        {path: await asyncio.to_thread(measure, path) for path in config.writable_log_directories},
        await asyncio.to_thread(measure, config.store_path_root_dir),
    )


class BrokerAdmin:
    """Serves the codes that show the broker's state and its statistics.

    ``described`` parts add their entries to the state.
    """

    def __init__(
        self,
        context: BrokerContext,
        delivery: DelayDelivery,
        described: Sequence[Described] = (),
    ) -> None:
        self._config = context.config
        self._store = context.store
        self._delivery = delivery
        self._described = described
        self._stats = context.stats
        self._clock = context.clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.figures,
        }

    async def figures(self, _peer: Peer, request: Request[ViewBrokerStatsData]) -> Reply:
        """Return the last minute, hour and day of one figure of a topic, a group or the broker."""
        name, key = request.header.stats_name, request.header.stats_key
        is_broker = name.startswith("BROKER_")
        found = None
        if not is_broker or key == self._config.broker_cluster_name:
            found = self._stats.figures(name, key)
        if found is None and not is_broker:
            # The topic may have got its first message since the last sample: count it now.
            slices = Slices(self._clock)
            for queue in [*self._store.queues.by_topic.get(key.partition("@")[0], {}).values()]:
                self._stats.take_puts((queue,))
                await slices.pause()
            found = self._stats.figures(name, key)
        if found is None:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"The stats <{name[:80]}> <{key[:300]}> not exist"
            )
        minute, hour, day = (BrokerStatsItem(each.average, each.sum, each.tps) for each in found)
        return Reply(body=encode_json(BrokerStatsData(day, hour, minute)))

    async def runtime_info(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return the broker's state under the keys that tools know."""
        return Reply(body=encode_json(KvTable(await self.state())))

    async def state(self, disks: Disks | None = None) -> dict[str, str]:
        """Return the broker's state by key. Without ``disks`` they are measured."""
        values = {
            **_WITHOUT_POOLS,
            **self._about_counts(),
            **self._about_log(),
            **self._stats.limits.facts(),
            **{key: value for part in self._described for key, value in part.facts().items()},
            **self._about_disk(disks or await measure_disks(self._store)),
            "earliestMessageTimeStamp": str(await self._earliest_ms()),
        }
        for level, (position, end) in self._delivery.progress().items():
            values[f"scheduleMessageOffset_{level}"] = f"{position},{end}"
        return values

    def _about_counts(self) -> Mapping[str, str]:
        stats, days = self._stats, self._stats.days
        average = stats.put_bytes / stats.puts if stats.puts else 0.0
        return {
            "brokerVersionDesc": version_name(OUR_VERSION),
            "brokerVersion": str(OUR_VERSION),
            "bootTimestamp": str(stats.started_ms),
            "runtime": format_duration(self._clock.wall_ms() - stats.started_ms),
            "putTps": stats.rates("puts"),
            "getFoundTps": stats.rates("found"),
            "getMissTps": stats.rates("missed"),
            "getTotalTps": stats.rates("found", "missed"),
            "getTransferedTps": stats.rates("transferred"),
            "msgPutTotalYesterdayMorning": str(days.puts_yesterday),
            "msgPutTotalTodayMorning": str(days.puts_today),
            "msgPutTotalTodayNow": str(stats.puts),
            "msgGetTotalYesterdayMorning": str(days.gets_yesterday),
            "msgGetTotalTodayMorning": str(days.gets_today),
            "msgGetTotalTodayNow": str(stats.pulled.transferred),
            "putMessageTimesTotal": str(stats.puts),
            "putMessageSizeTotal": str(stats.put_bytes),
            "putMessageAverageSize": str(average),
            **self._about_put_times(),
            "putMessageFailedTimes": str(self._store.state.put_failures),
            "startAcceptSendRequestTimeStamp": str(
                self._config.start_accept_send_request_time_stamp
            ),
        }

    def _about_put_times(self) -> Mapping[str, str]:
        times = self._stats.put_times
        pairs = zip(_PUT_TIMES, times.last_counts(), strict=True)
        return {
            "putMessageDistributeTime": "".join(f"{name}:{count} " for name, count in pairs),
            "putMessageEntireTimeMax": str(times.longest_ms),
            "putMessageSlowTimes": str(times.slow_count),
            "putLatency99": f"{times.percentile(0.99):.2f}",
            "putLatency999": f"{times.percentile(0.999):.2f}",
        }

    def _about_log(self) -> Mapping[str, str]:
        store, pool = self._store, self._store.transient
        left = _MAX_INT
        if pool is not None:
            size = store.config.transient_store_pool_size
            left = max(size * (pool.most_bytes - pool.waiting_bytes) // pool.most_bytes, 0)
        return {
            "remainTransientStoreBufferNumbs": str(left),
            "remainHowManyDataToCommit": format_size(store.committed_offset - store.written_offset),
            "commitLogMinOffset": str(store.log.segments.start),
            "commitLogMaxOffset": str(store.written_offset),
            "dispatchBehindBytes": str(store.written_offset - store.dispatched_offset),
            "remainHowManyDataToFlush": format_size(store.written_offset - store.durable_offset),
        }

    async def _earliest_ms(self) -> int:
        try:
            first = await find_record(self._store, self._store.log.segments.start)
        except StoreCorrupt:
            return -1
        return -1 if first is None else first.store_ms

    def _about_disk(self, disks: Disks) -> Mapping[str, str]:
        log = disks.log
        total, free = format_size(log.total_bytes), format_size(log.free_bytes)
        return {
            "commitLogDiskRatio": str(log.used_ratio),
            **{
                f"commitLogDiskRatio_{path}": str(space.used_ratio)
                for path, space in disks.by_log_directory.items()
            },
            "consumeQueueDiskRatio": str(disks.queues.used_ratio),
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
        }


def format_duration(duration_ms: int) -> str:
    """Format a duration as Java tools show it: "[ 0 days, 1 hours, 2 minutes, 3 seconds ]"."""
    minutes, seconds = divmod(max(duration_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def format_size(size_bytes: int) -> str:
    """Format a size as Java tools do: "12 B", "1.0 KiB" (upstream:
    MixAll.humanReadableByteCount)."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    power = min((size_bytes.bit_length() - 1) // 10, len(_SIZE_UNITS))
    return f"{size_bytes / 1024**power:.1f} {_SIZE_UNITS[power - 1]}iB"


class StoreAdmin:
    """Serves the codes that delete expired log files and queues without messages."""

    def __init__(self, context: BrokerContext) -> None:
        self._store = context.store
        self._offsets = context.tables.offsets
        self._appender = context.appender
        self._clock = context.clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_log,
        }

    async def delete_expired_log(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Delete the log files that are older than fileReservedTime, at any hour of the day."""
        try:
            await self._store.maintenance.expiry.make_room(at_once=True)
        except OSError as error:
            raise StoreError(f"cannot remove old log files: {error}") from error
        return Reply()

    async def clean_expired_queues(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Remove the queues whose messages have all been deleted from the log.

        The offsets of a removed queue begin at 0 again, so each group's offset in it is reset to 0.
        """
        dropped = 0
        for number, topic in enumerate(list(self._store.queues.known), 1):
            if not is_system_topic(topic):
                dropped += await self._drop(topic)
            if not number % _TOPICS_A_SLICE:
                await self._clock.sleep_ms(0)
        if dropped:
            log.warning("expired queues removed count=%d", dropped)
            await self._offsets.saved()
            await self._store.maintenance.note_soon()
        return Reply()

    async def _drop(self, topic: str) -> int:
        gone: list[int] = []
        try:
            await self._appender.between_turns(
                lambda: gone.extend(self._store.deletions.drop_expired(topic))
            )
        except OSError as error:
            raise StoreError(f"cannot remove the queues of topic {topic}: {error}") from error
        for group in self._offsets.groups_of(topic) if gone else ():
            for queue_id in gone:
                if self._offsets.query(group, topic, queue_id) > 0:
                    self._offsets.commit(group, topic, queue_id, 0)
        return len(gone)
