"""The topic table: system topics, automatic creation, names, its file."""

from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig, BrokerRole
from cometmq.broker.topics.table import check_name
from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest, StoreCorrupt
from cometmq.message.names import is_legal_name
from cometmq.protocol.bodies import TopicConfig
from tests.broker.world import open_parts, open_tables

JAVA_FILE = b"""{
\t"dataVersion":{
\t\t"counter":7,
\t\t"timestamp":1700000000000
\t},
\t"topicConfigTable":{
\t\t"TopicTest":{
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"TopicTest",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":4
\t\t}
\t}
}"""


async def test_every_broker_has_the_system_topics(tmp_path: Path) -> None:
    config = BrokerConfig(broker_name="b1", broker_cluster_name="c1")
    async with open_tables(tmp_path, config) as tables:
        found = {
            name: (topic.write_queue_nums, topic.perm)
            for name, topic in tables.topics.registered().items()
        }
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "c1": (16, 7),
        "b1": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "c1_REPLY_TOPIC": (1, 6),
    }


async def test_settings_decide_about_some_system_topics(tmp_path: Path) -> None:
    config = BrokerConfig(
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic_enable=True,
    )
    async with open_tables(tmp_path, config) as tables:
        assert "TBW102" not in tables.topics
        assert "RMQ_SYS_TRACE_TOPIC" in tables.topics
        cluster = tables.topics.get("DefaultCluster")
        assert cluster is not None
        assert cluster.perm == 1
        assert tables.topics.create_by_send("t", "TBW102", 4, "x") is None
        config.auto_create_topic_enable = True
        tables.topics.permission_changed()
        assert tables.topics.create_by_send("t", "TBW102", 4, "x") is not None


async def test_java_s_file_is_read_and_written_alike(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(JAVA_FILE)
    clock = VirtualClock(wall_ms=1_800_000_000_000)
    async with open_tables(tmp_path, clock=clock) as tables:
        topic = tables.topics.get("TopicTest")
        assert topic == TopicConfig("TopicTest", 4, 4)
        assert tables.topics.data_version.counter == 7
        for name in tables.topics:
            if name != "TopicTest":
                tables.topics.delete(name)
        counter = tables.topics.data_version.counter
    written = path.read_bytes()
    expected = JAVA_FILE.replace(b'"counter":7', b'"counter":%d' % counter)
    assert written == expected.replace(b"1700000000000", b"1800000000000")


async def test_a_table_survives_a_restart(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        tables.topics.put(TopicConfig("a", 2, 3, 4, "MULTI_TAG", 1, True))
        await tables.topics.saved()
        version = tables.topics.data_version
        async with open_tables(tmp_path) as again:
            assert again.topics.get("a") == TopicConfig("a", 2, 3, 4, "MULTI_TAG", 1, True)
            assert again.topics.data_version == version


async def test_a_broken_table_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(
        b'{"topicConfigTable":{"a":{"topicName":"a","readQueueNums":"x"}}}'
    )
    with pytest.raises(StoreCorrupt, match="topic 'a'"):
        async with open_tables(tmp_path):
            pass


async def test_old_releases_spell_the_flag_otherwise(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(
        b'{"dataVersion":{"counter":1,"timestamp":{},"x":1},"topicConfigTable":'
        b'{"a":{"topicName":"a","topicSynFlag":2}}}'.replace(b"{},", b"5,")
    )
    async with open_tables(tmp_path) as tables:
        topic = tables.topics.get("a")
        assert topic is not None
        assert topic.topic_sys_flag == 2


async def test_a_send_creates_a_topic(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        changes: list[int] = []
        tables.topics.on_change.append(lambda: changes.append(1))
        assert tables.topics.create_by_send("t", "TBW102", 4, "x") == TopicConfig("t", 4, 4, 6)
        assert tables.topics.create_by_send("u", "TBW102", 99, "x") == TopicConfig("u", 8, 8, 6)
        unit = tables.topics.create_by_send("v", "TBW102", 0, "x", unit=True)
        assert unit == TopicConfig("v", 1, 1, 6, "SINGLE_TAG", 1)
        assert tables.topics.create_by_send("w", "BenchmarkTest", 4, "x") is None
        assert tables.topics.create_by_send("w", "unknown", 4, "x") is None
        assert len(changes) == 3


async def test_retry_and_dead_letter_topics_are_made_once(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        made = tables.topics.create_retry("%RETRY%g", 2, unit=True)
        assert made == TopicConfig("%RETRY%g", 2, 2, 6, "SINGLE_TAG", 2)
        version = tables.topics.data_version
        assert tables.topics.create_retry("%RETRY%g", 5) is made
        assert tables.topics.data_version == version
        assert tables.topics.create_dead_letter("%DLQ%g") == TopicConfig("%DLQ%g", 1, 1, 6)


async def test_a_slave_makes_neither(tmp_path: Path) -> None:
    async with open_tables(
        tmp_path, BrokerConfig(broker_role=BrokerRole.SLAVE, broker_id=1)
    ) as tables:
        version = tables.topics.data_version
        made = tables.topics.create_retry("%RETRY%g", 2)
        assert made == TopicConfig("%RETRY%g", 2, 2, 6)
        assert "%RETRY%g" not in tables.topics
        assert tables.topics.data_version == version


async def test_a_topic_that_a_crash_took_from_the_table_is_found_in_the_store(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        parts.topics.put(TopicConfig("known", 1, 1))
        parts.topics.put(TopicConfig("shrunk", 1, 1))
        await parts.put("shrunk", queue_id=5)
        await parts.put("deleted")
        clock.advance(1)
        parts.topics.put(TopicConfig("deleted", 1, 1))
        parts.topics.delete("deleted")
        clock.advance(1)
        await parts.put("lost", queue_id=2)
        await parts.put("known", queue_id=5)
        await parts.put("RMQ_SYS_TRANS_HALF_TOPIC")
    async with open_parts(tmp_path, clock=clock) as parts:
        parts.topics.adopt(parts.store)
        assert parts.topics.get("lost") == TopicConfig("lost", 3, 3, 6)
        # Whoever made it larger did so after the table was written.
        assert parts.topics.get("known") == TopicConfig("known", 6, 1)
        assert parts.topics.get("shrunk") == TopicConfig("shrunk", 1, 1)
        assert parts.topics.get("deleted") is None
        assert parts.topics.get("RMQ_SYS_TRANS_HALF_TOPIC") is None


async def test_what_a_slave_finds_in_its_store_is_found_with_all_its_queues_when_it_is_the_master(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with open_parts(tmp_path, clock=clock) as parts:
        clock.advance(1)
        await parts.put("t")
    slave = BrokerConfig(broker_role=BrokerRole.SLAVE, broker_id=1)
    async with open_parts(tmp_path, slave, clock=clock) as parts:
        version = parts.topics.data_version
        parts.topics.adopt(parts.store)
        assert parts.topics.get("t") == TopicConfig("t", 1, 1, 6)
        assert parts.topics.data_version == version
        # Copied from its master before the table is.
        await parts.put("t", queue_id=1)
        clock.advance(1)
    async with open_parts(tmp_path, clock=clock) as parts:
        parts.topics.adopt(parts.store)
        assert parts.topics.get("t") == TopicConfig("t", 2, 2, 6)


async def test_deletions_are_remembered_while_the_log_may_hold_their_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.topics.table._REMEMBERED_DELETIONS", 3)
    async with open_tables(tmp_path) as tables:
        tables.topics.put(TopicConfig("made anew"))
        for end, topic in enumerate(("a", "made anew", "b", "c")):
            tables.topics.remember_deletion(topic, end=end, log_start=0)
        assert tables.topics.deleted() == {"b", "c"}
        await tables.topics.saved()
        async with open_tables(tmp_path) as again:
            assert again.topics.deleted() == {"b", "c"}
            again.topics.remember_deletion("b", end=9, log_start=3)
            assert again.topics.deleted() == {"b"}


async def test_what_was_dispatched_again_of_a_deleted_topic_is_dropped(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("gone")
        await parts.put("anew", b"former", queue_id=1)
        end = parts.store.written_offset
        await parts.put("anew", b"new")
        await parts.put("later")
        for topic in ("gone", "anew"):
            parts.topics.remember_deletion(topic, end=end, log_start=0)
        await parts.topics.saved()
        parts.topics.adopt(parts.store)
        found = parts.store.topics()
        assert (found.get("gone"), found["anew"], found["later"]) == (None, [0], [0])
        # What came behind the end of a deletion is taken in whatever the clocks say.
        assert parts.topics.get("anew") == TopicConfig("anew", 1, 1, 6)
        assert parts.topics.deleted() == {"gone"}


async def test_a_deletion_does_not_outlive_the_log_s_lost_end(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        parts.topics.remember_deletion("t", end=1_000_000, log_start=-1)
        await parts.topics.saved()
        await parts.put("other")
    for _ in range(2):
        async with open_parts(tmp_path) as parts:
            parts.topics.adopt(parts.store)
            if "t" not in parts.topics:  # its messages get the offsets that the log lost
                parts.topics.put(TopicConfig("t", 1, 1))
                await parts.put("t")
            assert len(parts.read("t")) == 1


async def test_without_a_table_every_topic_is_found_in_the_store(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as parts:
        await parts.put("t", queue_id=1)
    for path in (tmp_path / "config").glob("topics.json*"):
        path.unlink()
    async with open_parts(tmp_path) as parts:
        parts.topics.adopt(parts.store)
        assert parts.topics.get("t") == TopicConfig("t", 2, 2, 6)


async def test_what_a_registration_carries_is_bounded_by_the_broker(tmp_path: Path) -> None:
    config = BrokerConfig()
    async with open_tables(tmp_path, config) as tables:
        config.broker_permission = 4
        tables.topics.permission_changed()
        table = tables.topics.registered()
        assert set(table) == set(tables.topics)
        assert len(table) == len(tables.topics)
        assert table["TBW102"].perm == 4
        original = tables.topics.get("TBW102")
        assert original is not None
        assert original.perm == 7


async def test_an_equal_change_is_none(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        tables.topics.put(TopicConfig("a"))
        version = tables.topics.data_version
        tables.topics.put(TopicConfig("a"))
        assert tables.topics.delete("b") is False
        assert tables.topics.data_version == version
        assert tables.topics.delete("a") is True
        assert tables.topics.get("a") is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [("", "blank"), ("  ", "blank"), ("a b", "illegal"), ("ä", "illegal"), ("a" * 128, "longer")],
)
def test_bad_names_are_refused(name: str, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        check_name(name)
    assert not is_legal_name(name)


@pytest.mark.parametrize("name", ["a", "%RETRY%g|1_-Z", "a" * 127])
def test_good_names_are_fine(name: str) -> None:
    check_name(name)
    assert is_legal_name(name)


async def test_names_of_the_broker_itself_are_known(tmp_path: Path) -> None:
    async with open_tables(tmp_path) as tables:
        for name in ("TBW102", "broker-a", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x"):
            assert tables.topics.is_system(name)
        assert not tables.topics.is_system("orders")
