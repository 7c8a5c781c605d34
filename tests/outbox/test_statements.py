"""Statements bear as many values as marks, whatever is wanted."""

from __future__ import annotations

import pytest

from cometmq.outbox.row import Settled, Statement, WantedRows
from cometmq.outbox.table import Statements


@pytest.mark.parametrize("mark", ["?", "%s"])
def test_marks_and_values_agree(mark: str) -> None:
    make = Statements("outbox", mark)
    single: list[Statement] = [
        make.waiting(WantedRows(1, 2, 3)),
        make.waiting(WantedRows(1, 2, 3, resting=["t", "u"], hold_keys=False)),
        make.rows([1, 2, 3]),
        make.sent_as(1),
        make.status(),
        make.refused(5),
        make.retry(1),
        make.discard(1),
    ]
    for statement, values in single:
        assert statement.count(mark) == len(values)
    for keep_ms in (0, 100):
        settled = Settled({1: "", 2: "x"}, {3: "odd"}, now_ms=1_000, keep_ms=keep_ms)
        for statement, rows in make.settle(settled):
            assert {len(row) for row in rows} == {statement.count(mark)}


def test_what_did_not_happen_costs_no_statement() -> None:
    make = Statements("outbox", "?")
    assert list(make.settle(Settled({}, {}, now_ms=1, keep_ms=100))) == []
