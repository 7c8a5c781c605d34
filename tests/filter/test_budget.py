"""How much a read looks at by an expression."""

from __future__ import annotations

from cometmq.filter.stored import MAX_BYTES, MAX_COMPARISONS, MAX_SEARCHED_BYTES, Budget
from cometmq.store.read.reader import MAX_SCANNED_ENTRIES


def test_a_filter_of_a_few_parts_looks_at_as_much_as_a_read_does() -> None:
    budget = Budget(MAX_COMPARISONS // MAX_SCANNED_ENTRIES)
    assert budget.count == MAX_SCANNED_ENTRIES
    budget.take(MAX_SCANNED_ENTRIES - 1, 1_000)
    assert not budget.is_spent
    budget.take(1, 0)
    assert budget.is_spent


def test_the_more_parts_the_fewer_messages() -> None:
    assert Budget(200).count == 100
    assert Budget(10**9).count == 1


def test_the_longer_the_properties_the_fewer_messages() -> None:
    assert Budget(4_000).size_bytes == MAX_SEARCHED_BYTES // 4_000
    budget = Budget(3)
    budget.take(1, MAX_BYTES - 1)
    assert not budget.is_spent
    budget.take(1, 30_000)
    assert budget.is_spent
