"""A change and its message are one transaction of the base-data platform."""

import json
import sqlite3
from pathlib import Path

import pytest

from cometmq.demo.base import BaseData
from cometmq.demo.script import Edit
from cometmq.demo.tables import REGIONS, read_table
from cometmq.outbox.row import Row, Wanted
from tests.demo.worlds import small_script, small_world


def waiting(base: BaseData) -> list[Row]:
    source = base.outbox.open()
    page = source.take(Wanted(rows=10_000, page_bytes=1 << 30, largest_bytes=1 << 20))
    source.close()
    assert page is not None
    return list(page.rows)


def test_edits_change_the_tables_and_wait_in_the_outbox(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite", "changes")
    row = small_world()[2]
    assert base.apply([Edit("regions", "insert", "AD-02", row)], at_ms=10) == 1
    assert base.apply([Edit("regions", "delete", "AD-02", None)], at_ms=20) == 1
    first, second = waiting(base)
    message = first.message()
    assert (first.topic, first.order_key, message.tag, message.keys) == (
        *("changes", "AD-02"),
        *("insert", ("AD-02",)),
    )
    assert json.loads(first.body)["row"] == row
    assert json.loads(second.body) == {
        "table": "regions",
        "op": "delete",
        "key": "AD-02",
        "change": 2,
        "at_ms": 20,
        "row": None,
    }
    assert read_table(base.path, REGIONS) == []
    base.close()


def test_a_failed_transaction_leaves_neither_row_nor_message(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite", "changes")
    good, bad = small_world()[:2]
    edits = [
        Edit("regions", "insert", "AD", good),
        Edit("regions", "insert", "FR", bad | {"name": None}),
    ]
    with pytest.raises(sqlite3.IntegrityError):
        base.apply(edits, at_ms=1)
    assert waiting(base) == []
    assert read_table(base.path, REGIONS) == []
    assert base.apply(edits[:1], at_ms=2) == 1
    assert json.loads(waiting(base)[0].body)["change"] == 1
    base.close()


def test_a_change_number_is_never_given_twice_also_after_a_restart(tmp_path: Path) -> None:
    row = small_world()[0]
    for op, value in (("insert", row), ("delete", None), ("insert", row), ("update", row)):
        base = BaseData(tmp_path / "base.sqlite", "changes")
        base.apply([Edit("regions", op, "AD", value)], at_ms=1)  # type: ignore[arg-type]
        last = base.last_changes()
        base.close()
    assert last == {("regions", "AD"): 4}


def test_a_whole_script_waits_in_order(tmp_path: Path) -> None:
    base = BaseData(tmp_path / "base.sqlite", "changes")
    for step in small_script().initial():
        base.apply(step, at_ms=1)
    assert [json.loads(row.body)["change"] for row in waiting(base)] == list(range(1, 10))
    base.close()
