"""A batch is deduplicated: what is new is stored, what is stored already keeps its place."""

from __future__ import annotations

import pytest

from cometmq.broker.dedup import Cold, Stored, deduplicate
from cometmq.core.errors import MessageIllegal
from cometmq.message import batch


def body(*ids: str) -> bytes:
    return batch.pack(
        (0, f"body {at}".encode(), f"A\x01b\x02UNIQ_KEY\x01{each}".encode() if each else b"")
        for at, each in enumerate(ids)
    )


def bodies(raw: bytes) -> list[bytes]:
    return [entry.body for entry in batch.split(raw)]


def test_a_batch_of_new_messages_stays_as_it_is() -> None:
    raw = body("a", "b", "")
    found = deduplicate(raw, lambda _: None)
    assert found == (raw, ["a", "b", None], [0, 1, 2], [])


def test_what_is_stored_is_left_out_and_keeps_its_place_in_the_answer() -> None:
    there = {"a": Stored(3, 7, 700), "c": Stored(2, 9, 900)}
    found = deduplicate(body("a", "b", "c", "d"), there.get)
    assert bodies(found.body) == [b"body 1", b"body 3"]
    assert found.ids == ["b", "d"]
    assert found.places == [there["a"], 0, there["c"], 1]


def test_a_batch_of_repeats_has_nothing_to_store() -> None:
    there = Stored(3, 7, 700)
    assert deduplicate(body("a", "a"), lambda _: there) == (b"", [], [there, there], [])


def test_an_id_that_stands_in_a_batch_twice_is_stored_once() -> None:
    found = deduplicate(body("a", "b", "a"), lambda _: None)
    assert (bodies(found.body), found.places) == ([b"body 0", b"body 1"], [0, 1, 0])


def test_messages_without_an_id_are_all_new() -> None:
    found = deduplicate(body("", "", ""), lambda _: pytest.fail("asked"))
    assert (found.ids, found.places) == ([None] * 3, [0, 1, 2])


def test_all_cold_places_are_named_at_once() -> None:
    cold = {"a": Cold(1), "b": Cold(2)}
    assert deduplicate(body("a", "x", "b"), cold.get).cold == [Cold(1), Cold(2)]


@pytest.mark.parametrize("raw", [b"", b"no batch", body("a")[:-1]])
def test_a_body_that_is_no_batch_is_refused(raw: bytes) -> None:
    with pytest.raises(MessageIllegal):
        deduplicate(raw, lambda _: None)
