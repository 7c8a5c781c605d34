"""What seeds choose."""

from random import Random

from cometmq.testing.sim import settings


def test_seeds_choose_differently_and_again_the_same() -> None:
    chosen = [settings.choose(Random(seed)) for seed in range(50)]
    assert chosen == [settings.choose(Random(seed)) for seed in range(50)]
    assert {each.is_synced for each in chosen} == {True, False}
    assert len({each.weather for each in chosen}) == len(settings.WEATHERS)
    assert all(each.broker.message_delay_level == settings.DELAY_LEVELS for each in chosen)


def test_clients_differ_by_their_name() -> None:
    config = settings.client_config(Random(1), "a-1", default_topic_queues=3)
    assert (config.client_id, config.default_topic_queues) == ("a-1", 3)
