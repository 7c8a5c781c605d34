"""The pieces that files are made from; test_rebuild.py has the whole."""

from pathlib import Path

import numpy as np

from cometmq.spark.jobs.rebuild import (
    ENTRY,
    Plan,
    QueueShares,
    Share,
    index_pieces,
    name_index,
    write_queues,
)

ROW = np.dtype([("topic", "<i4"), ("queue", "<i4"), ("offset", "<i8"), ("entry", ENTRY)])


def plan(root: Path, index_entries: int = 11) -> Plan:
    return Plan(root, root, 200, 8, index_entries, ())


def test_keys_are_cut_into_index_files(tmp_path: Path) -> None:
    keys = [Share("a", 0, 7), Share("b", 0, 0), Share("c", 0, 25)]
    assert index_pieces(plan(tmp_path), keys) == [
        (0, (Share("a", 0, 7), Share("c", 0, 3))),
        (1, (Share("c", 3, 10),)),
        (2, (Share("c", 13, 10),)),
        (3, (Share("c", 23, 2),)),
    ]
    assert index_pieces(plan(tmp_path), []) == []


def test_index_files_are_named_by_time_and_never_alike(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    for number in range(3):
        (tmp_path / "index" / f"part-{number}").touch()
    names = name_index(plan(tmp_path), [(1, 1_700_000_000_999), (0, 1_700_000_000_999), (2, 5)])
    assert names == ["20231114221320999", "20231114221321000", "20231114221321001"]
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == names


def test_a_queue_that_does_not_begin_at_0_and_a_life_before(tmp_path: Path) -> None:
    rows = np.zeros(6, ROW)
    rows["offset"] = [7, 8, 13, 14, 15, 17]
    rows["offset"][:2] = [40, 41]
    rows["entry"]["size"] = 9
    np.save(tmp_path / "rows.npy", rows)
    queue = QueueShares("t", 2, (Share(str(tmp_path / "rows.npy"), 0, 6),))
    assert write_queues(plan(tmp_path), [queue], lambda _: None) == (1, 4, 2)
    (path,) = (tmp_path / "consumequeue" / "t" / "2").iterdir()
    assert path.name == f"{200:020d}"
    sizes = np.frombuffer(path.read_bytes(), ENTRY)["size"].tolist()
    hole = 0x7FFF_FFFF
    assert sizes == [hole, hole, hole, 9, 9, 9, hole, 9, 0, 0]
