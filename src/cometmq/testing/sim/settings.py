"""What a seed chooses once: sizes, waits, who takes part, what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.config import BrokerConfig
from cometmq.client.config import ClientConfig
from cometmq.store.config import FlushDiskType, StoreConfig
from cometmq.testing.sim.network import Weather

if TYPE_CHECKING:
    from random import Random

NAMESRV_HOST: Final = "127.0.0.1"
NAMESRV_PORT: Final = 9876
BROKER_HOST: Final = "127.0.1.1"
BROKER_PORT: Final = 10911
BROKER_NAME: Final = "broker-a"
#: Levels 3, 4 and 5 are what a first, second and third retry waits.
DELAY_LEVELS: Final = "1s 2s 3s 4s 6s"

WEATHERS: Final = (
    Weather(),
    Weather((200, 500, 1_000, 2_000), split=0.1),
    Weather((100, 200, 400, 800, 5_000, 50_000), split=0.3),
    Weather((100, 100, 200, 200, 300, 300, 500, 500, 1_000, 300_000)),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """One seed's choice."""

    broker: BrokerConfig
    store: StoreConfig
    weather: Weather
    queues: int
    #: See machines.py.
    grain_ms: int

    @property
    def is_synced(self) -> bool:
        """Whether an acknowledged message outlives a power cut."""
        return self.store.flush_disk_type is FlushDiskType.SYNC_FLUSH


def choose(chance: Random) -> Settings:
    """The settings of a seed."""
    queues = chance.choice((1, 2, 2, 3))
    broker = BrokerConfig(
        bind_address=BROKER_HOST,
        listen_port=BROKER_PORT,
        broker_ip1=BROKER_HOST,
        broker_name=BROKER_NAME,
        namesrv_addr=f"{NAMESRV_HOST}:{NAMESRV_PORT}",
        message_delay_level=DELAY_LEVELS,
        flush_consumer_offset_interval=chance.choice((1_000, 5_000)),
        flush_delay_offset_interval=chance.choice((1_000, 10_000)),
        transaction_time_out=chance.choice((1_000, 3_000)),
        transaction_check_interval=chance.choice((2_000, 5_000)),
        transaction_check_max=1_000,
        lookout_micros=0,
    )
    store = StoreConfig(
        store_path_root_dir="/store",
        flush_disk_type=chance.choice((FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH)),
        mapped_file_size_commit_log=chance.choice((16_384, 65_536)),
        mapped_file_size_consume_queue=20 * chance.choice((30, 100)),
        max_hash_slot_num=chance.choice((7, 64)),
        max_index_num=chance.choice((40, 200)),
        message_delay_level=DELAY_LEVELS,
        flush_consume_queue_thorough_interval=chance.choice((3_000, 60_000)),
        flush_commit_log_least_pages=chance.choice((0, 4)),
    )
    grain_ms = chance.choice((100, 500, 500, 1_000))
    return Settings(broker, store, chance.choice(WEATHERS), queues, grain_ms)


def client_config(chance: Random, client_id: str, **changes: Any) -> ClientConfig:
    """The settings of one client: waits are short, for a simulation to be."""
    return ClientConfig(
        name_servers=(f"{NAMESRV_HOST}:{NAMESRV_PORT}",),
        client_id=client_id,
        request_timeout_ms=2_000,
        connect_timeout_ms=1_000,
        send_timeout_ms=chance.choice((1_000, 3_000)),
        pull_suspend_ms=chance.choice((2_000, 5_000)),
        pull_timeout_ms=8_000,
        pull_error_pause_ms=1_000,
        rebalance_interval_ms=chance.choice((2_000, 5_000)),
        route_poll_interval_ms=10_000,
        heartbeat_interval_ms=10_000,
        offset_persist_interval_ms=chance.choice((500, 2_000)),
        local_retry_pause_ms=1_000,
        ordered_retry_pause_ms=500,
        **changes,
    )
