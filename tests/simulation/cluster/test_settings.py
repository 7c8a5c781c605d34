"""Settings that seeds choose."""

from random import Random

from cometmq.broker.config import HaRejoin
from cometmq.store.config import FlushDiskType
from tests.simulation.cluster import settings


def test_seeds_choose_differently_and_again_the_same() -> None:
    chosen = [settings.choose(Random(seed)) for seed in range(50)]
    assert chosen == [settings.choose(Random(seed)) for seed in range(50)]
    assert {each.store.flush_disk_type for each in chosen} == set(FlushDiskType)
    assert {each.rejoin for each in chosen} == set(HaRejoin)
    assert len({each.weather for each in chosen}) == len(settings.WEATHERS)
    assert {len(each.slaves) for each in chosen} == set(settings.SLAVES)
    assert {each.namesrvs for each in chosen} == {1, 2}
    assert all(each.broker.message_delay_level == settings.DELAY_LEVELS for each in chosen)


def test_clients_differ_by_their_name() -> None:
    config = settings.client_config(Random(1), "a-1", default_topic_queues=3)
    assert (config.client_id, config.default_topic_queues) == ("a-1", 3)


def test_brokers_of_a_run_differ_by_host_and_number() -> None:
    chosen = next(each for each in map(choose_of, range(50)) if len(each.slaves) == 2)
    names, configs, stores = zip(*chosen.machines(), strict=True)
    assert names == ("broker", "slave-1", "slave-2")
    assert [config.broker_id for config in configs] == [0, 1, 2]
    assert [config.is_slave for config in configs] == [False, True, True]
    assert [config.bind_address for config in configs] == list(settings.BROKER_HOSTS)
    assert {config.ha_rejoin for config in configs[1:]} == {chosen.rejoin}
    assert {store.mapped_file_size_commit_log for store in stores} == {
        chosen.store.mapped_file_size_commit_log
    }


def choose_of(seed: int) -> settings.Settings:
    return settings.choose(Random(seed))
