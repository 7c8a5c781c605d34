"""Digests of entries: order means nothing, every field does."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.tools.digest import Digest, add_parts, join, mix_entries, mix_keys, of
from cometmq.store.tools.walk import Ints

ROW = st.tuples(*[st.integers(0, 1 << 40)] * 6)


def columns(rows: list[tuple[int, ...]]) -> list[Ints]:
    return [np.array(column, np.int64) for column in zip(*rows, strict=True)]


def digest(rows: list[tuple[int, ...]]) -> Digest:
    return of(mix_entries(*columns(rows)))


@given(st.lists(ROW, min_size=1, max_size=20))
def test_order_means_nothing_and_parts_add_up(rows: list[tuple[int, ...]]) -> None:
    whole = digest(rows)
    assert digest(rows[::-1]) == whole
    first, rest = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert (digest(first) if first else Digest()).plus(digest(rest)) == whole


@given(ROW, st.integers(0, 5), st.integers(1, 1 << 30))
def test_every_field_counts(row: tuple[int, ...], field: int, change: int) -> None:
    other = list(row)
    other[field] += change
    assert digest([row]) != digest([tuple(other)])


def test_two_entries_that_exchange_a_field_are_noticed() -> None:
    assert digest([(1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12)]) != digest(
        [(7, 2, 3, 4, 5, 6), (1, 8, 9, 10, 11, 12)]
    )
    phys, hashes = columns([(1, 10), (2, 20)])
    assert of(mix_keys(phys, hashes)) != of(mix_keys(phys, hashes[::-1].copy()))


def test_parts_of_a_row_go_to_their_owners() -> None:
    mixed = np.array([1, 2, 4, 8], np.int64)
    found: dict[int, Digest] = {7: Digest(1, 100)}
    add_parts(found, mixed, np.array([0, 1, 3]), [7, 8, 7])
    assert found == {7: Digest(3, 109), 8: Digest(2, 6)}
    join(found, {8: Digest(1, 1), 9: Digest(1, 3)})
    assert found == {7: Digest(3, 109), 8: Digest(3, 7), 9: Digest(1, 3)}


def test_sums_wrap() -> None:
    assert Digest(1, (1 << 64) - 1).plus(Digest(1, 2)) == Digest(2, 1)
