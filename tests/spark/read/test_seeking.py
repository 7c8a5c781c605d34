"""The search for a moment finds the first message, whatever the guess."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.read.positions import first_at_or_after, search_together

TIMES = st.lists(st.integers(0, 30), min_size=1).map(sorted)


@given(TIMES, st.integers(-1, 31), st.data())
def test_it_finds_the_first(times: list[int], moment: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, 5))
    hint = data.draw(st.integers(-3, len(times) + 8))
    asked: list[int] = []

    def look(places: Mapping[str, int]) -> dict[str, int]:
        asked.append(places["q"])
        return {"q": times[places["q"] - low]}

    found = search_together({"q": first_at_or_after(low, low + len(times), hint, moment)}, look)
    assert found == {"q": low + sum(time < moment for time in times)}
    assert len(asked) == len(set(asked))


def test_a_good_hint_costs_few_looks() -> None:
    asked: list[int] = []

    def look(places: Mapping[str, int]) -> dict[str, int]:
        asked.extend(places.values())
        return {queue: offset * 10 for queue, offset in places.items()}

    search = first_at_or_after(0, 1_000_000, 500_000, 5_000_000)
    assert search_together({"q": search}, look) == {"q": 500_000}
    assert len(asked) <= 3


@given(st.lists(TIMES, max_size=5), st.integers(-1, 31))
def test_many_searches_take_their_steps_together(queues: list[list[int]], moment: int) -> None:
    rounds: list[int] = []

    def look(places: Mapping[int, int]) -> dict[int, int]:
        rounds.append(len(places))
        return {queue: queues[queue][offset] for queue, offset in places.items()}

    searches = {
        queue: first_at_or_after(0, len(times), 0, moment) for queue, times in enumerate(queues)
    }
    assert search_together(searches, look) == {
        queue: sum(time < moment for time in times) for queue, times in enumerate(queues)
    }
    assert rounds == sorted(rounds, reverse=True)
    assert len(rounds) <= 12


def test_an_empty_queue_needs_no_look() -> None:
    def look(places: Mapping[str, int]) -> dict[str, int]:
        raise AssertionError(places)

    assert search_together({"q": first_at_or_after(7, 7, 0, 5)}, look) == {"q": 7}
    assert search_together({}, look) == {}
