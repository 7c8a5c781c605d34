"""Every setting that a Java server of 4.9.7 shows is known here, with the value it has there."""

import pytest

from cometmq.broker import config as broker_config
from cometmq.namesrv import config as namesrv_config
from tests.compat.conftest import OF_ROCKETMQ_5, Target
from tests.compat.driver import Driver

#: Far fewer would mean that the answer was not understood; 4.9.7 has 181 keys, some twice.
BROKER_KEYS_MIN = 150
NAMESRV_KEYS_MIN = 15


def properties(printed: str) -> dict[str, str]:
    """The settings that mqadmin printed."""
    pairs = (line.partition("=") for line in printed.splitlines() if "=" in line)
    found = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    # The tests' Java broker was given these too, and shows what it was given.
    return {key: found[key] for key in found if key and key not in OF_ROCKETMQ_5}


@pytest.mark.runs("4.9.7-java")
def test_the_whole_configuration_of_a_java_broker_is_accepted(
    driver: Driver, target: Target
) -> None:
    at = ("-n", target.namesrv, "-b", target.broker)
    values = properties(driver.mqadmin("getBrokerConfig", *at))
    assert len(values) > BROKER_KEYS_MIN
    broker, store, notices = broker_config.load(values)
    assert broker.broker_name == target.broker_name
    assert store.file_reserved_time == int(values["fileReservedTime"])
    (notice,) = [each for each in notices if "no effect" in each]
    assert "sendMessageThreadPoolNums" in notice


@pytest.mark.runs("4.9.7-java")
def test_the_whole_configuration_of_a_java_name_server_is_accepted(
    driver: Driver, target: Target
) -> None:
    values = properties(driver.mqadmin("getNamesrvConfig", "-n", target.namesrv))
    assert len(values) > NAMESRV_KEYS_MIN
    config, _ = namesrv_config.load(values)
    assert config.listen_port == int(values["listenPort"])
