"""How much a read looks at by an expression."""

from __future__ import annotations

from cometmq.filter.budget import MAX_BYTES, MAX_COMPARISONS, SMALL_MESSAGE_BYTES, Budget
from cometmq.store.reader import MAX_SCANNED_ENTRIES

SMALL = ["x" * 100] * 256


def test_a_filter_of_a_few_parts_looks_at_as_much_as_a_read_does() -> None:
    budget = Budget(MAX_COMPARISONS // MAX_SCANNED_ENTRIES)
    for _ in range(MAX_SCANNED_ENTRIES // len(SMALL)):
        assert budget.take(SMALL, 256 * 200) == 256
        assert budget.take([]) == 0
    assert not budget.is_spent


def test_the_more_parts_the_fewer_messages() -> None:
    budget = Budget(200)
    assert budget.count == 100
    assert budget.take(SMALL) == 100
    assert budget.is_spent
    assert Budget(10**9).take(SMALL) == 1


def test_the_longer_the_properties_the_fewer_messages() -> None:
    budget = Budget(3)
    long = ["x" * 30_000] * 20
    assert budget.take(long, 31_000 * 20) == MAX_BYTES // 30_000
    assert budget.is_spent
    # One comes always: nobody would get past it otherwise.
    assert Budget(4_000).take(long) == 1


def test_properties_of_small_messages_are_not_counted() -> None:
    budget = Budget(3)
    assert budget.take(SMALL, SMALL_MESSAGE_BYTES * len(SMALL)) == len(SMALL)
    assert budget.size_bytes == MAX_BYTES
    assert budget.take(SMALL, SMALL_MESSAGE_BYTES * len(SMALL) + 1) == len(SMALL)
    assert budget.size_bytes == MAX_BYTES - 100 * len(SMALL)
    heavy = Budget(1_000)
    assert heavy.take(SMALL, 200) == 20
    assert heavy.is_spent
