"""Ids of rows: the same for the same row, never for two."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.ids import decode_offset_id
from cometmq.spark.write import rows
from cometmq.spark.write.rows import Ids, Origin, place_seed

ORIGIN = Origin("query", 7, 2)


def of_rows(origin: Origin, contents: list[bytes]) -> list[str]:
    ids = Ids(origin)
    return [ids.of_row(content) for content in contents]


@given(st.lists(st.binary(max_size=4), max_size=50), st.randoms())
def test_the_order_of_rows_does_not_matter(contents: list[bytes], chance: Random) -> None:
    shuffled = list(contents)
    chance.shuffle(shuffled)
    found = of_rows(ORIGIN, contents)
    assert sorted(found) == sorted(of_rows(ORIGIN, shuffled))
    assert len(set(found)) == len(contents)


def test_query_batch_and_task_are_part_of_an_id() -> None:
    origins = [ORIGIN, Origin("query", 8, 2), Origin("query", 7, 3), Origin("other", 7, 2)]
    assert len({of_rows(origin, [b"x"])[0] for origin in origins}) == 4


def test_a_row_that_was_read_has_the_same_id_in_any_query() -> None:
    seed = place_seed("t", "a", 1, 5)
    first = Ids(ORIGIN).of_place(seed, b"x")
    assert Ids(Origin("other", 1, 9)).of_place(seed, b"x") == first
    assert Ids(ORIGIN).of_place(place_seed("t", "a", 1, 6), b"x") != first


def test_rows_made_of_one_message_are_told_apart() -> None:
    ids, seed = Ids(ORIGIN), place_seed("t", "a", 1, 5)
    found = [ids.of_place(seed, content) for content in (b"x", b"y", b"x")]
    assert len(set(found)) == 3
    ids.of_place(place_seed("t", "a", 1, 6), b"x")
    again = Ids(ORIGIN)
    assert [again.of_place(seed, content) for content in (b"x", b"x", b"y")] == [
        found[0],
        found[2],
        found[1],
    ]


def test_equal_rows_of_one_message_may_be_anywhere_in_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a repartition: with equal ids, a broker that drops repeats would drop one."""
    monkeypatch.setattr(rows, "EPOCH_ROWS", 200)
    seed = place_seed("t", "a", 1, 5)
    together = Ids(ORIGIN)
    expected = [together.of_place(seed, b"x") for _ in range(30)]
    apart, found = Ids(ORIGIN), []
    for number in range(30):
        found.append(apart.of_place(seed, b"x"))
        others = {
            apart.of_place(place_seed("t", "a", 2, number * 90 + at), b"x") for at in range(90)
        }
        assert len(others) == 90
        assert len(apart._of_places) + len(apart._of_places_before) <= 200
    assert found == expected
    assert len(set(found)) == 30


def test_an_id_has_the_form_of_a_unique_key_that_leads_to_nobody_else() -> None:
    (found,) = of_rows(ORIGIN, [b"x"])
    assert len(found) == 32
    assert decode_offset_id(found).host.startswith("127.")
    assert found[20:28] == "0" * 8


def test_what_is_remembered_of_rows_is_bound_and_equal_rows_stay_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "EPOCH_ROWS", 200)
    ids = Ids(ORIGIN)
    found: set[str] = set()
    for _ in range(1_000):
        found.add(ids.of_row(b"same"))
        assert len(ids._seen) <= 200
    assert len(found) == 1_000
