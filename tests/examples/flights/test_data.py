"""The year of flights: all of them, when they left, in order."""

import importlib.metadata
import itertools

import pytest

from examples.flights import data
from examples.flights.data import Flight, NoFlights, flights, in_order


def local_minute(flight: Flight) -> int:
    """When a flight left by New York's clock, in minutes of its day; the line's own hour and its
    hour in UTC tell how the clock was set."""
    hour, minute = flight.row["hour"], flight.row["minute"]
    assert isinstance(hour, int)
    assert isinstance(minute, int)
    return (hour * 60 + minute + int(flight.row["dep_delay"] or 0)) % 1440


def test_the_whole_year() -> None:
    count = cancelled = nameless = 0
    last_ms = 0
    offsets = set()
    for flight in flights():
        assert flight.born_ms >= last_ms
        last_ms = flight.born_ms
        count += 1
        nameless += flight.tail is None
        left_at = flight.row["dep_time"]
        if left_at is None:
            cancelled += 1
            continue
        # What was computed is what the file says by the clock on the wall: 2400 is midnight.
        hour, minute = divmod(int(left_at), 100)
        assert local_minute(flight) == (hour * 60 + minute) % 1440
        offsets.add((local_minute(flight) - flight.born_ms // 60_000) % 1440 // 60)
    assert (count, cancelled, nameless) == (data.COUNT, 8_255, 2_512)
    assert offsets == {19, 20}  # UTC-5 and, in summer, UTC-4


def test_a_line() -> None:
    first = next(data.read(data.data_file()))
    assert first.born_ms == 1_357_035_420_000  # 2013-01-01, 5:17 in New York
    assert (first.carrier, first.tail, first.order_key) == ("UA", "N14228", "N14228")
    assert first.row["flight"] == 1545
    assert first.row["time_hour"] == "2013-01-01T10:00:00Z"


def made(day: int, born_ms: int) -> Flight:
    return Flight(born_ms, "XX", None, {"month": 1, "day": day, "flight": 7})


def test_a_flight_that_leaves_on_a_later_day_comes_there() -> None:
    days = [made(1, 50), made(1, 10), made(1, 250), made(2, 110), made(3, 210), made(3, 220)]
    assert [each.born_ms for each in in_order(days)] == [10, 50, 110, 210, 220, 250]
    assert days[0].order_key == "XX7"


def test_only_two_days_are_read_ahead() -> None:
    days = itertools.count(1)
    endless = in_order(made(day, day * 100) for day in days)
    assert [next(endless).born_ms for _ in range(5)] == [100, 200, 300, 400, 500]
    assert next(days) < 10


def test_without_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(NoFlights, match="pip install"):
        data.data_file()
