"""Stores that a real Java broker wrote, read without it."""

from pathlib import Path

import pytest

from cometmq.spark.store import planning
from tests.golden import library
from tests.spark.store.reading import rows


@pytest.fixture(params=["clean", "killed"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, library.GoldenStore]:
    name = request.param
    return library.unpack_store(name, tmp_path), library.stores()[name]


@pytest.mark.parametrize("by_entries", [False, True])
def test_every_message_is_as_the_java_broker_served_it(
    golden: tuple[Path, library.GoldenStore], monkeypatch: pytest.MonkeyPatch, by_entries: bool
) -> None:
    root, facts = golden
    monkeypatch.setattr(planning, "FEW_PARTS", 0 if by_entries else 1 << 40)
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    for topic, expected in facts["topics"].items():
        found = rows(root, topic=topic)
        counts = [int(queue["max"]) - int(queue["min"]) for queue in expected["queues"].values()]
        assert len(found) == sum(counts)
        by_place = {(row["queue_id"], row["queue_offset"]): row for row in found}
        assert len(by_place) == len(found)
        for message in expected["messages"]:
            row = by_place[message["queueId"], message["queueOffset"]]
            assert row["topic"] == topic
            assert row["physical_offset"] == message["commitLogOffset"]
            assert row["size_bytes"] == message["storeSize"]
            assert row["msg_id"] == message["msgId"]
            assert row["keys"] == message.get("keys")
            assert row["tags"] == message.get("tags")
            assert row["reconsume_times"] == message["reconsumeTimes"]
            assert int(row["store_timestamp"].timestamp() * 1000) == message["storeTimestamp"]
            assert row["body"][:64] == message["body"].encode()


def test_topics_of_the_system_are_left_out_unless_asked_for(
    golden: tuple[Path, library.GoldenStore],
) -> None:
    root, facts = golden
    names = ("topic",)
    plain = [name for name in facts["topics"] if not name.startswith("%")]
    assert {row["topic"] for row in rows(root, names)} == set(plain)
    everything = rows(root, names, subscribePattern=".*", includeSystemTopics="true")
    assert {"SCHEDULE_TOPIC_XXXX", "%RETRY%golden-group"} < {row["topic"] for row in everything}
    parked = facts["parked_delay_level_18"]
    assert len(rows(root, names, topic="SCHEDULE_TOPIC_XXXX")) >= parked
