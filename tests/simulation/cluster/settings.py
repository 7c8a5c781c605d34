"""Choices that a seed makes once: sizes, waiting times, participants, faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.config import BrokerConfig, BrokerRole, HaRejoin
from cometmq.client.config import ClientConfig
from cometmq.store.config import FlushDiskType, StoreConfig
from tests.simulation.cluster.network import Weather

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

NAMESRV_HOSTS: Final = ("127.0.0.1", "127.0.0.2")
NAMESRV_PORT: Final = 9876
#: The master's host first, then those of slaves.
BROKER_HOSTS: Final = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
BROKER_PORT: Final = 10911
BROKER_NAME: Final = "broker-a"
#: Levels 3, 4 and 5 are the delays of the first, second and third retry.
DELAY_LEVELS: Final = "2s 4s 1s 3s 5s"

#: Numbers of slaves to choose from: none in half of the seeds, because each adds a third to the
#: duration of a run.
SLAVES: Final = (0, 0, 0, 1, 1, 2)
_MASTERS: Final = (BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.SYNC_MASTER)
_FLUSHES: Final = (FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH)

WEATHERS: Final = (
    Weather(),
    Weather((200, 500, 1_000, 2_000), split=0.1),
    Weather((100, 200, 400, 800, 5_000, 50_000), split=0.3),
    Weather((100, 100, 200, 200, 300, 300, 500, 500, 1_000, 300_000)),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """One seed's choice: the master's ``broker`` and ``store``, and the stores of its slaves.

    ``rejoin`` is what slaves do if their log differs from their master's.
    """

    broker: BrokerConfig
    store: StoreConfig
    weather: Weather
    queues: int
    #: Multiple of ms at which the brokers' sleeps end; see machines.py.
    grain_ms: int
    namesrvs: int = 1
    slaves: tuple[StoreConfig, ...] = ()
    rejoin: HaRejoin = HaRejoin.REFUSE

    def machines(self) -> Iterator[tuple[str, BrokerConfig, StoreConfig]]:
        """Yield name, settings and store of each broker, the master's first."""
        yield "broker", self.broker, self.store
        for number, store in enumerate(self.slaves, 1):
            yield f"slave-{number}", as_slave(self.broker, number, self.rejoin), store


def as_slave(config: BrokerConfig, number: int, rejoin: HaRejoin) -> BrokerConfig:
    """Return the settings of slave ``number`` (from 1 on) of the master with settings
    ``config``."""
    host = BROKER_HOSTS[number]
    return replace(
        config,
        bind_address=host,
        broker_ip1=host,
        broker_role=BrokerRole.SLAVE,
        broker_id=number,
        ha_rejoin=rejoin,
    )


def namesrv_addresses(count: int) -> tuple[str, ...]:
    """Return the addresses of ``count`` name servers."""
    return tuple(f"{host}:{NAMESRV_PORT}" for host in NAMESRV_HOSTS[:count])


def choose(chance: Random) -> Settings:
    """Return the settings of a seed."""
    queues = chance.choice((1, 2, 2, 3))
    namesrvs = chance.choice((1, 2))
    slaves = chance.choice(SLAVES)
    broker = BrokerConfig(
        bind_address=BROKER_HOSTS[0],
        listen_port=BROKER_PORT,
        broker_ip1=BROKER_HOSTS[0],
        broker_name=BROKER_NAME,
        namesrv_addr=";".join(namesrv_addresses(namesrvs)),
        broker_role=chance.choice(_MASTERS) if slaves else BrokerRole.ASYNC_MASTER,
        in_sync_replicas=chance.randint(2, slaves + 1) if slaves else 1,
        slave_timeout=chance.choice((300, 1_000)),
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
        flush_disk_type=chance.choice(_FLUSHES),
        mapped_file_size_commit_log=chance.choice((16_384, 65_536)),
        mapped_file_size_consume_queue=20 * chance.choice((30, 100)),
        max_hash_slot_num=chance.choice((7, 64)),
        max_index_num=chance.choice((40, 200)),
        message_delay_level=DELAY_LEVELS,
        flush_consume_queue_thorough_interval=chance.choice((3_000, 60_000, 60_000)),
        flush_commit_log_least_pages=chance.choice((0, 16, 16)),
    )
    grain_ms = chance.choice((100, 1_000, 1_000, 1_000, 1_000, 1_000))
    copies = tuple(replace(store, flush_disk_type=chance.choice(_FLUSHES)) for _ in range(slaves))
    rejoin = chance.choice((HaRejoin.REFUSE, HaRejoin.TRUNCATE))
    return Settings(
        broker, store, chance.choice(WEATHERS), queues, grain_ms, namesrvs, copies, rejoin
    )


def client_config(
    chance: Random, client_id: str, *, namesrvs: int = 1, **changes: Any
) -> ClientConfig:
    """Return the settings of one client, with short waits to keep a simulation short."""
    return ClientConfig(
        name_servers=namesrv_addresses(namesrvs),
        client_id=client_id,
        request_timeout_ms=2_000,
        connect_timeout_ms=1_000,
        send_timeout_ms=chance.choice((1_000, 3_000)),
        pull_suspend_ms=chance.choice((3_000, 6_000)),
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
