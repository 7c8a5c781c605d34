"""The queues in memory, by topic and number."""

from pathlib import Path

from cometmq.store.queue.consumequeue import ConsumeQueue
from cometmq.store.queue.table import QueueTable
from tests.store.stores import opened, put


def test_queues_come_and_go(tmp_path: Path) -> None:
    store = opened(tmp_path)
    table = QueueTable(store.pool, store.log.segments, ())
    queues = [table.load(topic, number) for topic in "ab" for number in (0, 7)]
    assert len(table) == 4
    assert [*table.values()] == queues
    assert table.get(("b", 7)) is queues[3]
    assert table.get(("b", 1)) is table.get(("c", 0)) is None
    gone: list[ConsumeQueue] = []
    table.on_gone.append(gone.append)
    assert table.pop(("a", 0)) is queues[0]
    assert table.pop(("a", 0)) is table.pop(("c", 0)) is None
    assert table.pop(("a", 7)) is queues[1]
    assert [*table.by_topic] == ["b"]
    assert len(table) == 2
    assert gone == queues[:2]
    assert table.topics() == {"a": [0, 7], "b": [0, 7]}
    table.forget("a", [0, 7])
    assert table.topics() == {"b": [0, 7]}
    store.close()


def test_the_queues_of_a_topic_share_its_name(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(2):
        put(store, "".join(["to", "pic"]), number)
    store.commit()
    first, second = (store.queue("topic", number) for number in range(2))
    assert first.topic is second.topic
    assert first.topic_tail is second.topic_tail
    assert first.topic_hash == second.topic_hash
    store.close()
