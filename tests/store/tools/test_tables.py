"""Tables that a broker would not start with, and what they say of deleted topics."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.core.errors import StoreError
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.tools.verify import verify
from tests.broker.serving import SMALL, make_broker
from tests.store.stores import fill, opened, put

CONFIG: dict[str, Any] = {
    "mapped_file_size_commit_log": int(SMALL["mappedFileSizeCommitLog"]),
    "mapped_file_size_consume_queue": int(SMALL["mappedFileSizeConsumeQueue"]),
    "max_hash_slot_num": int(SMALL["maxHashSlotNum"]),
    "max_index_num": int(SMALL["maxIndexNum"]),
}

VERSION = {"counter": 1, "timestamp": 1}


def write(root: Path, name: str, table: object) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(json.dumps(table))


def found_in(root: Path) -> list[tuple[str, str]]:
    config = StoreConfig(store_path_root_dir=str(root), **CONFIG)
    findings = verify(config, ReadOnlyFiles(), processes=1).findings
    return [(each.severity.value, each.kind) for each in findings]


async def starts(root: Path) -> bool:
    broker = make_broker(root)
    try:
        await broker.start()
    except StoreError:
        return False
    await broker.stop()
    return True


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("topics.json", {"topicConfigTable": {"t": {"readQueueNums": 4}}}),
        ("topics.json", {"topicConfigTable": {"t": {"topicName": "t", "perm": "all"}}}),
        ("topics.json", {"topicConfigTable": {"t": 1}}),
        ("topics.json", {"topicConfigTable": {}, "dataVersion": {"counter": "x"}}),
        ("topics.json", {"topicConfigTable": {}, "cometmqDeleted": {"t": "x"}}),
        ("topics.json", {"dataVersion": VERSION}),
        ("subscriptionGroup.json", {"subscriptionGroupTable": {"g": {"groupName": 5}}}),
        ("consumerOffset.json", {"offsetTable": {"t@g": {"zero": 1}}}),
        ("consumerOffset.json", {"offsetTable": {"t@g": [1, 2]}}),
        ("delayOffset.json", {"offsetTable": {"one": 1}}),
        ("delayOffset.json", {"offsetTable": {"1": None}}),
    ],
)  # fmt: skip
def test_what_a_broker_refuses_to_start_with_is_damage(
    tmp_path: Path, name: str, table: object
) -> None:
    root = tmp_path / "s"
    opened(root, **CONFIG).close()
    assert found_in(root) == []
    write(root, name, table)
    assert found_in(root) == [("damage", "table")]
    assert not asyncio.run(starts(root))
    # With a backup it starts, and the table is still not what it was.
    empty: dict[str, object] = {}
    kinds = ("offsetTable", "topicConfigTable", "subscriptionGroupTable")
    write(root, name + ".bak", dict.fromkeys(kinds, empty))
    assert found_in(root) == [("damage", "table")]
    assert asyncio.run(starts(root))


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("topics.json", {"topicConfigTable": {"t": {"topicName": "t", "perm": "6"}}}),
        ("topics.json", {"topicConfigTable": None}),
        ("consumerOffset.json", {"offsetTable": {"t@g": {"0": "1"}}}),
        ("delayOffset.json", {"offsetTable": {"1": 0}}),
    ],
)  # fmt: skip
def test_what_a_broker_starts_with_is_none(tmp_path: Path, name: str, table: object) -> None:
    root = tmp_path / "s"
    opened(root, **CONFIG).close()
    write(root, name, table)
    assert found_in(root) == []
    assert asyncio.run(starts(root))


def test_a_topic_deleted_and_made_again_is_sound_while_it_is_empty(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root, **CONFIG)
    fill(store, 60)
    deletion = store.deletions.delete("t")
    store.pool.removals.settle(deletion.pending)
    put(store, "other")
    store.commit()
    store.close()
    topics = {name: {"topicName": name} for name in ("t", "other")}
    write(root, "topics.json", {"topicConfigTable": topics, "cometmqDeleted": {"t": deletion.end}})
    assert set(found_in(root)) == {("note", "deleted-topic")}
    # One queue has messages again; of the others the former ones are still no loss.
    store = opened(root, **CONFIG)
    put(store, "t", 1)
    store.commit()
    store.close()
    assert set(found_in(root)) == {("note", "deleted-topic")}


def test_what_came_after_the_deletion_is_missed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = opened(root, **CONFIG)
    fill(store, 60)
    store.close()
    topics = {"t": {"topicName": "t"}}
    write(root, "topics.json", {"topicConfigTable": topics, "cometmqDeleted": {"t": 50}})
    (root / "consumequeue/t/1" / f"{0:020d}").unlink()
    assert ("damage", "record-without-entry") in found_in(root)
