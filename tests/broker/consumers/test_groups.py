"""The group table: automatic creation, its file."""

from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig, BrokerRole
from cometmq.broker.consumers.groups import GroupTable
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.net.limits import Limit, ServerLimits
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.protocol.fastjson import parse_json
from tests.broker.world import open_tables


async def test_every_broker_has_some_groups(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        for name in ("TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONSAPI_PULL"):
            assert name in tables.groups
        assert len(tables.groups) == 7


async def test_groups_are_created_when_asked_for(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        assert tables.groups.get("g") is None
        assert tables.groups.find("g") == SubscriptionGroupConfig("g")
        assert tables.groups.find("g") is tables.groups.get("g")
        assert tables.groups.find("bad name") is None
        assert tables.groups.find("g" * 200) is None


async def test_a_slave_leaves_it_to_its_master(tmp_path: Path) -> None:
    async with open_tables(
        tmp_path, BrokerConfig(broker_role=BrokerRole.SLAVE, broker_id=1)
    ) as tables:
        version = tables.groups.data_version
        assert tables.groups.find("g") == SubscriptionGroupConfig("g")
        assert tables.groups.get("g") is None
        assert tables.groups.data_version == version


async def test_without_automatic_creation_only_the_system_gets_groups(tmp_path: Path) -> None:
    config = BrokerConfig(auto_create_subscription_group=False)
    async with open_tables(tmp_path, config) as tables:
        assert tables.groups.find("g") is None
        assert tables.groups.find("CID_RMQ_SYS_TRANS") is not None


async def test_invented_names_do_not_fill_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An administrator may still create groups, and those that exist are served."""
    config = BrokerConfig(max_subscription_groups=9)
    limits = ServerLimits(config, VirtualClock())
    async with open_tables(tmp_path, config) as tables:
        groups = GroupTable(tables.directory, config, limits)
        groups.load()
        found = [groups.find(f"g{number}") for number in range(100)]
        assert [each is not None for each in found] == [True, True] + [False] * 98
        assert groups.find("CID_RMQ_SYS_invented") is None
        assert "raise maxSubscriptionGroups: there are 9 groups" in groups.advice("g2")
        assert limits.hits[Limit.CONSUMER_GROUPS] == 99
        assert caplog.text.count("limit=consumerGroups") == 10
        groups.put(SubscriptionGroupConfig("admin"))
        assert groups.find("admin") == SubscriptionGroupConfig("admin")
        config.max_subscription_groups = 0
        assert groups.find("g2") == SubscriptionGroupConfig("g2")
        # Both tables write the same file.
        await groups.saved()


async def test_groups_survive_a_restart(tmp_path: Path) -> None:
    config = SubscriptionGroupConfig("g", consume_enable=False, retry_max_times=3)
    async with open_tables(tmp_path) as tables:
        tables.groups.put(config)
        tables.groups.put(SubscriptionGroupConfig("gone"))
        assert tables.groups.delete("gone")
        assert not tables.groups.delete("gone")
        await tables.groups.saved()
        async with open_tables(tmp_path) as again:
            assert again.groups.get("g") == config
            assert "gone" not in again.groups
            assert again.groups.data_version.counter == 3
    written = parse_json((tmp_path / "subscriptionGroup.json").read_bytes())
    assert list(written["subscriptionGroupTable"]["g"]) == [
        "brokerId",
        "consumeBroadcastEnable",
        "consumeEnable",
        "consumeFromMinEnable",
        "groupName",
        "notifyConsumerIdsChangedEnable",
        "retryMaxTimes",
        "retryQueueNums",
        "whichBrokerWhenConsumeSlowly",
    ]


async def test_a_broken_group_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "subscriptionGroup.json").write_bytes(
        b'{"subscriptionGroupTable":{"g":{"retryMaxTimes":1}}}'
    )
    with pytest.raises(StoreCorrupt, match="group 'g'"):
        async with open_tables(tmp_path):
            pass


async def test_changes_are_told_unless_the_group_or_the_broker_is_silent(tmp_path: Path) -> None:
    config = BrokerConfig()
    async with open_tables(tmp_path, config) as tables:
        tables.groups.put(SubscriptionGroupConfig("q", notify_consumer_ids_changed_enable=False))
        assert [tables.groups.notifies(name) for name in ("unknown", "q")] == [True, False]
        config.notify_consumer_ids_changed_enable = False
        assert not tables.groups.notifies("unknown")
