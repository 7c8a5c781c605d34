"""Which place each message is read from: every wanted offset once, from the first that has it."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.model import MessageQueue
from cometmq.spark.read.planning import Range
from cometmq.spark.tiers.cover import Portion, cover, divided, merged

QUEUES = [
    MessageQueue("T", "broker-a", 0),
    MessageQueue("T", "broker-a", 1),
    MessageQueue("T", "broker-b", 0),
]
OFFSETS = st.integers(0, 40)
RANGES = st.lists(st.builds(Range, st.sampled_from(QUEUES), OFFSETS, OFFSETS), max_size=6)
PLACES = st.lists(RANGES, max_size=4).map(lambda held: list(enumerate(held)))
Place = tuple[MessageQueue, int]


def places_of(parts: list[Range]) -> list[Place]:
    return [(part.queue, at) for part in parts for at in range(part.start, part.stop)]


@given(RANGES, PLACES)
def test_every_offset_exactly_once(
    wanted: list[Range], held: list[tuple[int, list[Range]]]
) -> None:
    found = cover(wanted, held)
    given_once = Counter(places_of([portion.part for portion in found.portions]))
    given_once.update(places_of(found.missing))
    assert given_once == Counter(set(places_of(wanted)))


@given(RANGES, PLACES)
def test_the_first_place_that_has_an_offset_gives_it(
    wanted: list[Range], held: list[tuple[int, list[Range]]]
) -> None:
    found = cover(wanted, held)
    holders = {place: set(places_of(parts)) for place, parts in held}
    for portion in found.portions:
        for place in places_of([portion.part]):
            assert min(at for at in holders if place in holders[at]) == portion.place
    for place in places_of(found.missing):
        assert not any(place in each for each in holders.values())


@given(RANGES)
def test_merged_ranges_are_apart_and_in_order(parts: list[Range]) -> None:
    found = merged(parts)
    for spans in found.values():
        assert all(start < stop for start, stop in spans)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))
    assert set(places_of(parts)) == set(
        places_of([Range(queue, *span) for queue, spans in found.items() for span in spans])
    )


def test_an_archive_a_store_and_a_broker() -> None:
    queue = QUEUES[0]
    archive = [Range(queue, 0, 50), Range(queue, 60, 70)]
    store = [Range(queue, 40, 90)]
    live = [Range(queue, 95, 120)]
    found = cover([Range(queue, 10, 110)], [("archive", archive), ("store", store), ("live", live)])
    assert sorted(found.portions, key=lambda portion: portion.part) == [
        Portion("archive", Range(queue, 10, 50)),
        Portion("store", Range(queue, 50, 60)),
        Portion("archive", Range(queue, 60, 70)),
        Portion("store", Range(queue, 70, 90)),
        Portion("live", Range(queue, 95, 110)),
    ]
    assert found.missing == [Range(queue, 90, 95)]


def test_one_held_range_reaches_into_several_wanted_ones() -> None:
    assert divided([(0, 5), (10, 15), (20, 25)], [(3, 22)]) == (
        [(3, 5), (10, 15), (20, 22)],
        [(0, 3), (22, 25)],
    )
