"""Stores that grow while a plan looks at them."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.spark.store import planning
from cometmq.spark.store.files import ConsumeQueueReader, queue_names
from cometmq.spark.store.holdings import StoreHoldings
from cometmq.spark.store.options import Key, StoreOptions, StoreRoot, parse
from cometmq.spark.store.planning import StorePlanner, plan
from cometmq.spark.store.reader import batches
from cometmq.store.messagestore import MessageStore
from tests.store.stores import copied, fill, opened, run_round


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageStore]:
    """300 messages in 3 queues, of which a copy is kept as ``early``; open meanwhile."""
    monkeypatch.setattr(planning, "LAST_MOMENTS_BYTES", 0)
    monkeypatch.setattr(planning, "FEW_PARTS", 0)
    found = opened(tmp_path / "s")
    grow(found)
    yield found
    found.close()


def grow(store: MessageStore) -> None:
    fill(store, 300)
    run_round(store, thorough=True)


def before_the_last_queue(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen once, when the first two queues have been looked at."""
    left = [happens]

    class Reader(ConsumeQueueReader):
        def __init__(self, root: str, topic: str, queue_id: int) -> None:
            if queue_id == 2 and left:
                left.pop()()
            super().__init__(root, topic, queue_id)

    monkeypatch.setattr(planning, "ConsumeQueueReader", Reader)


def offsets_by_queue(options: StoreOptions) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for task in plan(options):
        for batch in batches(task, options, ("queue_id", "queue_offset")):
            for row in batch.to_pylist():
                found.setdefault(row["queue_id"], []).append(row["queue_offset"])
    return {queue_id: sorted(offsets) for queue_id, offsets in found.items()}


ALL = {queue_id: list(range(200)) for queue_id in range(3)}


def test_a_log_that_grows_during_the_look(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_last_queue(monkeypatch, lambda: grow(store))
    options = parse({"store": store.config.store_path_root_dir, "brokerName": "b", "topic": "t"})
    assert offsets_by_queue(options) == ALL


def test_a_log_that_grows_while_holdings_are_found(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_last_queue(monkeypatch, lambda: grow(store))
    options = parse({"store": store.config.store_path_root_dir, "brokerName": "b", "topic": "t"})
    held = StoreHoldings(options.roots[0], options).held()
    assert {(each.queue.queue_id, each.start, each.stop) for each in held} == {
        (queue_id, 0, 200) for queue_id in range(3)
    }


def behind_a_url(root: Path) -> StoreOptions:
    options = parse({"store": str(root), "brokerName": "b", "topic": "t"})
    return replace(options, roots=(StoreRoot(f"file://{root}", "b"),))


@pytest.fixture
def early(store: MessageStore) -> Path:
    """A copy of the store, which has grown since."""
    root = Path(store.config.store_path_root_dir)
    found = copied(root, "early")
    grow(store)
    return found


def replaced(copy: Path, root: str | Path) -> None:
    """Write all files of a copy anew."""
    shutil.copytree(root, copy, copy_function=shutil.copyfile, dirs_exist_ok=True)


def test_a_copy_that_grows_during_the_look(
    store: MessageStore, early: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store.config.store_path_root_dir
    before_the_last_queue(monkeypatch, lambda: replaced(early, root))
    assert offsets_by_queue(behind_a_url(early)) == ALL


def test_a_copy_that_gets_log_files_before_its_queues_are_listed(
    store: MessageStore, early: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store.config.store_path_root_dir

    def listed_late(path: str) -> list[Key]:
        replaced(early, root)
        return queue_names(path)

    monkeypatch.setattr(planning, "queue_names", listed_late)
    assert offsets_by_queue(behind_a_url(early)) == ALL


def test_a_range_of_a_queue_lists_the_log_files_that_it_refers_to(store: MessageStore) -> None:
    root = Path(store.config.store_path_root_dir)
    options = behind_a_url(root)
    planner = StorePlanner(options.roots[0], options)
    planner.ends()
    assert len(planner.files) >= 5
    listed = []
    for low, high in ((0, 100), (0, 1), (99, 100), (50, 60)):
        part = planner.queue_part(("t", 0), low, high)
        assert part.listed is not None
        assert sum(b.num_rows for b in batches((part,), options, ("queue_offset",))) == high - low
        listed.append(len(part.listed.log))
    assert listed[0] >= len(planner.files) - 1
    assert listed[1:3] == [1, 1]
    assert listed[3] <= 2
