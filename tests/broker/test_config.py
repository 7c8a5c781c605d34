"""Settings of a broker from RocketMQ's property files."""

import pytest

from cometmq.broker.config import (
    LIVE,
    BrokerConfig,
    advertising_problem,
    change,
    load,
    plan_change,
    resolve,
)
from cometmq.core.errors import SettingsError
from cometmq.core.javakeys import JAVA_KEYS, JavaKey
from cometmq.core.settings import (
    build,
    declarations,
    known_keys,
    normalise,
    parse_properties,
    to_properties,
)
from cometmq.namesrv.config import NamesrvConfig
from cometmq.store.config import FlushDiskType, StoreConfig
from scripts.settings_page import PAGE, replace_tables


def test_a_rocketmq_property_file_is_understood() -> None:
    broker, store, notices = load(
        {
            "brokerClusterName": "Cluster9",
            "brokerName": "broker-x",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "listenPort": "10999",
            "flushDiskType": "SYNC_FLUSH",
            "brokerRole": "ASYNC_MASTER",
            "maxMessageSize": "1024",
            "sendMessageThreadPoolNums": "16",
            "abortFile": "/data/abort",
            "transientStorePoolEnable": "true",
            "enableConsumeQueueExt": "false",
        }
    )
    assert broker.broker_cluster_name == "Cluster9"
    assert broker.broker_name == "broker-x"
    assert broker.listen_port == 10999
    assert broker.max_message_size == store.max_message_size == 1024
    assert store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert notices == [
        "these settings have no effect in CometMQ and are ignored: sendMessageThreadPoolNums, "
        "abortFile (cometmq config explain KEY says why)",
        "setting transientStorePoolEnable has no effect with flushDiskType=SYNC_FLUSH or "
        "brokerRole=SLAVE and is ignored",
    ]
    assert not store.answers_before_write


def test_directories_without_new_files_need_a_comma() -> None:
    asked = {"storePathCommitLog": "/a,/b", "readOnlyCommitLogStorePaths": "/b"}
    _, store, notices = load(asked)
    assert (store.writable_log_directories, notices) == (("/a",), [])
    _, store, notices = load(asked | {"storePathCommitLog": "/a"})
    assert store.commit_log_directories == ("/a",)
    assert [notice for notice in notices if "readOnlyCommitLogStorePaths has no effect" in notice]


def test_a_transient_pool_is_for_masters_that_flush_later() -> None:
    """As upstream has it; the log says once what a kill may take."""
    asked = {"transientStorePoolEnable": "true", "commitIntervalCommitLog": "50"}
    _, store, notices = load(asked)
    assert store.answers_before_write
    assert [notice for notice in notices if "the sends of the last 250 ms" in notice]
    _, store, notices = load(asked | {"brokerRole": "SLAVE", "brokerId": "1"})
    assert not store.answers_before_write
    assert [notice for notice in notices if "brokerRole=SLAVE and is ignored" in notice]
    assert not load({})[1].answers_before_write


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("brokrName", "a", "did you mean 'brokerName'"),
        ("brokerRole", "SLAVE", "1 or more for a slave"),
        ("enableLmq", "true", "not supported: light queues"),
        ("mappedFileSizeConsumeQueueExt", "1023", "from 1024 to 2147483647 bytes, not 1023"),
        ("brokerId", "1", "must be 0 for a master"),
        ("haTransferBatchSize", "0", "from 1 to 2097152 bytes, not 0"),
        ("inSyncReplicas", "0", "at least 1, not 0"),
        ("maxHaTransferByteInSecond", "-1", "at least 0 bytes, not -1"),
        ("haMasterAddress", "somewhere", "host:port"),
        ("haMasterAddress", "10.0.0.1:70000", "host:port, not '10.0.0.1:70000'"),
        ("takenAddress", "10.0.0.1:0", "host:port, not '10.0.0.1:0'"),
        ("listenPort", "70000", "from 0 to 65535"),
        ("defaultTopicQueueNums", "0", "at least 1"),
        ("brokerName", "", "must have a name"),
        ("lookoutMicros", "-1", "from 0 to 1000"),
        ("lookoutMicros", "1001", "from 0 to 1000"),
        ("longPollingEnable", "perhaps", "neither true nor false"),
        ("messageDelayLevel", "1s 5", "messageDelayLevel"),
        ("storePathCommitLog", ",", "new files of the log need a directory"),
        ("enableDLegerCommitLog", "true", "start with an empty store"),
        ("messageStorePlugIn", "a.B", "cannot run Java classes, .*: leave it empty"),
    ],
)
def test_what_cannot_be_done_is_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load({key: value})


def test_the_defaults_are_kept_to_this_machine() -> None:
    broker, _, notices = load({})
    assert (broker.bind_address, broker.broker_ip1) == ("127.0.0.1", "127.0.0.1")
    assert not broker.remote_admin_enable
    assert notices == []


def test_the_advertised_address_follows_the_bound_one() -> None:
    broker, _, _ = load({"bindAddress": "192.0.2.7"})
    assert broker.broker_ip1 == "192.0.2.7"
    broker, _, _ = load({"bindAddress": "0.0.0.0"})
    assert broker.broker_ip1 not in ("0.0.0.0", "")


@pytest.mark.parametrize(
    ("bind", "advertised", "problem"),
    [
        ("127.0.0.1", "127.0.0.1", None),
        ("0.0.0.0", "192.0.2.7", None),
        ("0.0.0.0", "127.0.0.1", "from this machine only"),
        ("192.0.2.7", "localhost", "from this machine only"),
        ("127.0.0.1", "192.0.2.7", "listens on 127.0.0.1 only"),
        ("0.0.0.0", "0.0.0.0", "not an address that clients"),
    ],
)
def test_an_address_that_others_cannot_reach_is_warned_of(
    bind: str, advertised: str, problem: str | None
) -> None:
    found = advertising_problem(BrokerConfig(bind_address=bind, broker_ip1=advertised))
    assert (found is None) if problem is None else (found is not None and problem in found)
    _, _, notices = load({"bindAddress": bind, "brokerIP1": advertised})
    assert notices == ([] if found is None else [found])


def test_names_become_addresses() -> None:
    assert resolve("192.0.2.7") == "192.0.2.7"
    assert resolve("localhost") in ("127.0.0.1", "::1")
    with pytest.raises(SettingsError, match="cannot resolve"):
        resolve("no such host")


def test_live_settings_change_in_place() -> None:
    config = BrokerConfig()
    values = {"autoCreateTopicEnable": "false", "brokerName": "broker-a", "deleteWhen": "04"}
    changed = change(config, StoreConfig(), values)
    assert changed == ["auto_create_topic_enable"]
    assert config.auto_create_topic_enable is False


@pytest.mark.parametrize(
    "values",
    [
        {"brokerPermission": "4", "listenPort": "1"},
        {"brokerPermission": "4", "mappedFileSizeCommitLog": "8192"},
        {"fileReservedTime": "1", "brokerRole": "SYNC_MASTER"},
        {"brokerPermission": "4", "nonsense": "1"},
        {"brokerPermission": "4", "maxMessageSize": "big"},
    ],
)
def test_settings_change_all_or_none(values: dict[str, str]) -> None:
    config, store = BrokerConfig(), StoreConfig()
    with pytest.raises(SettingsError):
        change(config, store, values)
    assert (config, store) == (BrokerConfig(), StoreConfig())


def test_every_key_that_cannot_be_changed_is_named() -> None:
    values = {"listenPort": "1", "brokerPermission": "4", "flushDiskType": "SYNC_FLUSH", "x": "y"}
    with pytest.raises(SettingsError) as caught:
        change(BrokerConfig(), StoreConfig(), values)
    found = [error.key for error in (caught.value, *caught.value.more)]
    assert found == ["listenPort", "flushDiskType", "x"]


def test_settings_of_the_store_change_in_place() -> None:
    config, store = BrokerConfig(), StoreConfig()
    values = {"fileReservedTime": "48", "maxMessageSize": "1024", "delete_when": "04"}
    assert change(config, store, values) == ["max_message_size", "file_reserved_time"]
    assert (store.file_reserved_time, store.max_message_size) == (48, 1024)
    assert config.max_message_size == 1024


def test_a_key_without_effect_may_be_changed() -> None:
    planned = plan_change(BrokerConfig(), StoreConfig(), {"sendMessageThreadPoolNums": "4"})
    assert (planned.changed, planned.ignored) == ((), ("sendMessageThreadPoolNums",))


def test_live_names_are_fields() -> None:
    assert set(declarations(BrokerConfig)) | set(declarations(StoreConfig)) >= LIVE


def test_settings_survive_the_round_trip_through_text() -> None:
    config = BrokerConfig(broker_ip1="192.0.2.1", broker_permission=4)
    text = to_properties(config)
    assert text["brokerIP1"] == "192.0.2.1"
    assert build(BrokerConfig, text)[0] == config


def test_the_settings_page_is_as_declared() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert replace_tables(page) == page, "run python -m scripts.settings_page"
    assert all(f"| `{key}` |" in page for key in (*known_keys(BrokerConfig), "abortFile"))


@pytest.mark.parametrize("cls", [BrokerConfig, StoreConfig, NamesrvConfig])
def test_every_setting_has_a_meaning(cls: type[BrokerConfig]) -> None:
    assert [name for name, declared in declarations(cls).items() if not declared.meaning] == []


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"brokrName": "a", "listenPort": "70000", "enableLmq": "true", "maxMessageSize": "x"})
    found = [error.key for error in (caught.value, *caught.value.more)]
    assert sorted(found) == ["brokrName", "enableLmq", "listenPort", "maxMessageSize"]
    assert len(str(caught.value).splitlines()) == 4


def test_no_ignored_key_is_one_that_works() -> None:
    known = {
        normalise(key)
        for cls in (BrokerConfig, StoreConfig, NamesrvConfig)
        for key in known_keys(cls)
    }
    assert not known & set(JAVA_KEYS)


@pytest.mark.parametrize("key", [key for key in JAVA_KEYS.values() if key.accepted])
def test_a_value_that_asks_for_nothing_is_no_matter(key: JavaKey) -> None:
    for value in key.accepted:
        assert load({key.name: value})[2] == []
    with pytest.raises(SettingsError, match="not supported"):
        load({key.name: "true"})


def test_a_file_from_real_life_starts_with_one_notice() -> None:
    """Keys of several releases, as files that were carried over for years have them."""
    text = """
    brokerClusterName = DefaultCluster
    brokerName = broker-a
    brokerId = 0
    namesrvAddr = 10.0.0.1:9876;10.0.0.2:9876
    defaultTopicQueueNums = 4
    autoCreateTopicEnable = false
    listenPort = 10911
    deleteWhen = 04
    fileReservedTime = 120
    mapedFileSizeCommitLog = 1073741824
    mapedFileSizeConsumeQueue = 300000
    destroyMapedFileIntervalForcibly = 120000
    redeleteHangedFileInterval = 120000
    diskMaxUsedSpaceRatio = 88
    storePathRootDir = /data/store
    storePathCommitLog = /data/store/commitlog
    storePathConsumeQueue = /data/store/consumequeue
    storePathIndex = /data/store/index
    storeCheckpoint = /data/store/checkpoint
    abortFile = /data/store/abort
    maxMessageSize = 65536
    flushCommitLogLeastPages = 4
    brokerRole = SYNC_MASTER
    flushDiskType = ASYNC_FLUSH
    checkTransactionMessageEnable = false
    sendMessageThreadPoolNums = 128
    pullMessageThreadPoolNums = 128
    waitTimeMillsInSendQueue = 500
    transferMsgByHeap = true
    warmMapedFileEnable = true
    """
    broker, store, notices = load(parse_properties(text))
    assert broker.name_servers == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert (store.file_reserved_time, store.disk_max_used_space_ratio) == (120, 88)
    (notice,) = notices
    for key in ("mapedFileSizeCommitLog", "abortFile", "checkTransactionMessageEnable"):
        assert key in notice
    assert notice.count(",") == 13, "14 keys have no effect"
