"""Writes the tables of docs/spark/capacity.md: the resources for a load, from measured constants.

Run `python -m scripts.spark_capacity` after a change of a constant; a test fails if the page
differs. The formulas are in `needed` and `archive`. `simulate` runs a stream batch by batch through
a day with an outage and computes its lag; `scripts/spark_plan.py` runs the plan of a batch. The
results are deterministic: no clock, no random numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scripts import spark_plan
from scripts.marks import write_tables

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "spark" / "capacity.md"

GIGABIT: Final = 125_000_000
TB: Final = 10**12
DAY_S: Final = 86_400

#: Departures of New York's flights in 2013 by hour of the day, with a mean of 1: a typical day of
#: human activity. The hours from 6 to 20 are busy, the nights are empty.
DAY_SHAPE: Final = (
    *(0.06, 0.02, 0.0, 0.0, 0.02, 0.52, 1.65, 1.55, 1.91, 1.37, 1.17, 1.22),
    *(1.17, 1.23, 1.5, 1.68, 1.65, 1.63, 1.58, 1.48, 1.2, 0.81, 0.4, 0.19),
)
PEAK: Final = max(DAY_SHAPE)


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs, on one processor of the project's virtual machine; docs/spark/capacity.md
    names the run of each."""

    send_us: float = 9.2
    """Processor time of a broker for a single send."""
    batched_send_us: float = 3.5
    """Processor time of a broker for a send in a batch of 64."""
    pull_us: float = 1.8
    """Processor time of a broker for a message that is read."""
    spark_us: float = 10.0
    """Spark's processor time for a message from the broker into Parquet: the JVM and Python."""
    scan_us: float = 2.8
    """Spark's processor time for a message that is read from Parquet."""
    batch_s: float = 0.5
    """Elapsed time of a micro-batch, whatever its size."""
    log_bytes: int = 480
    """Size of a message in the broker's log."""
    parquet_bytes: int = 110
    """Size of a message in Parquet."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Planning decisions: the share of a processor, network or disk that may be used in the busiest
    hour, the number of slaves and readers, and the machines."""

    share: float = 0.7
    slaves: int = 1
    readers: int = 1
    batched: bool = True
    retention_h: int = 24
    outage_s: int = 3_600
    catch_up_s: int = 4 * 3_600
    broker_disk_bytes: int = 8 * TB
    broker_network: int = 10 * GIGABIT
    executor_cores: int = 8
    file_bytes: int = 128_000_000


@dataclass(frozen=True, slots=True)
class Need:
    """The resources for a rate. ``why`` is the resource that determines the number of brokers."""

    per_s: int
    brokers: int
    why: str
    cores: int
    executors: int
    into_brokers: float
    out_of_brokers: float
    into_storage: float


MEASURED: Final = Costs()
PLANNED: Final = Choices()


def needed(per_s: int, costs: Costs = MEASURED, choices: Choices = PLANNED) -> Need:
    """Return the resources to store and stream ``per_s`` messages per second on average.

    The day has the shape of DAY_SHAPE. Network rates are bytes per second in the busiest hour.
    """
    busy = per_s * PEAK
    into = busy * costs.log_bytes
    out = into * (choices.slaves + choices.readers)
    bounds = {
        "processor": busy * broker_us(costs, choices) / 1e6 / choices.share,
        "network": max(into, out) / (choices.broker_network * choices.share),
        "disk": per_s * costs.log_bytes * choices.retention_h * 3_600
        / (choices.broker_disk_bytes * choices.share),
    }  # fmt: skip
    why = max(bounds, key=bounds.__getitem__)
    cores = cores_needed(per_s, costs, choices)
    return Need(
        per_s,
        max(2, math.ceil(bounds[why]) + 1),  # one may be away
        why,
        cores,
        math.ceil(cores / choices.executor_cores),
        into,
        out,
        busy * costs.parquet_bytes,
    )


def broker_us(costs: Costs, choices: Choices) -> float:
    """Return a master's processor time for a message that is sent once and read by all readers,
    both in one event loop."""
    send = costs.batched_send_us if choices.batched else costs.send_us
    return send + choices.readers * costs.pull_us


def cores_needed(per_s: int, costs: Costs, choices: Choices) -> int:
    """Return the cores that handle the busiest hour within the share, and catch up after an outage
    in time."""
    steady = per_s * PEAK / choices.share
    making_up = per_s * PEAK * (1 + choices.outage_s / choices.catch_up_s)
    return math.ceil(max(steady, making_up) * costs.spark_us / 1e6)


def catch_up_s(outage_s: float, per_s: float, capacity_per_s: float) -> float:
    """Return the time to work off an outage's backlog at a steady rate; infinite without spare
    capacity."""
    spare = capacity_per_s - per_s
    return outage_s * per_s / spare if spare > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Archive:
    """The size of an archive in messages and files, and the times to fill and read it."""

    size_bytes: int
    messages: float
    files: int
    fill_days: float
    read_core_h: float


def archive(
    size_bytes: int, per_s: int, costs: Costs = MEASURED, choices: Choices = PLANNED
) -> Archive:
    """Return the figures of a Parquet archive of ``size_bytes`` that a rate fills."""
    messages = size_bytes / costs.parquet_bytes
    return Archive(
        size_bytes,
        messages,
        math.ceil(size_bytes / choices.file_bytes),
        messages / per_s / DAY_S,
        messages * costs.scan_us / 1e6 / 3_600,
    )


# ---------------------------------------------------------------------- the simulation


@dataclass(frozen=True, slots=True)
class Course:
    """The result of a simulation. Lags are from birth to the end of the batch, in seconds, weighted
    by messages. ``caught_up_s`` is the time after an outage until the lag is below a minute again.
    """

    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    backlog_max: float
    caught_up_s: float
    batches: int


def day(per_s: float) -> Callable[[int], float]:
    """Return the arrivals in a second of the day, by DAY_SHAPE."""
    return lambda second: per_s * DAY_SHAPE[second // 3_600 % 24]


def simulate(
    arrivals: Callable[[int], float],
    capacity_per_s: float,
    *,
    batch_s: float,
    trigger_s: float = 10.0,
    cap: float = math.inf,
    outage: tuple[int, int] = (0, 0),
    seconds: int = DAY_S,
) -> Course:
    """Run micro-batches over arrivals by second, until all messages are processed, for at most 30
    times ``seconds``.

    A batch takes the waiting messages, at most ``cap``, and lasts ``batch_s`` and its messages'
    time. The next one begins at the trigger, or at once if that has passed. The stream stops during
    ``outage``.
    """
    waiting: deque[tuple[float, float]] = deque()
    lags: list[tuple[float, float]] = []
    backlog = backlog_max = 0.0
    caught_up = math.nan
    now, taken, batches = 0.0, 0, 0
    while taken < seconds or backlog > 0:
        if outage[0] <= now < outage[1]:
            now = float(outage[1])
        while taken < min(seconds, int(now)):
            count = arrivals(taken)
            waiting.append((taken + 0.5, count))
            backlog += count
            taken += 1
        backlog_max = max(backlog_max, backlog)
        size = min(backlog, cap)
        ends = now + batch_s + size / capacity_per_s
        if size:
            batches += 1
            oldest = waiting[0][0]
            lags += [(ends - born, count) for born, count in _take(waiting, size)]
            backlog = sum(count for _, count in waiting)
            if math.isnan(caught_up) and now >= outage[1] > 0 and ends - oldest < 60:
                caught_up = now - outage[1]
        now = max(ends, now + trigger_s)
        if now > 30 * seconds:
            break
    lags.sort()
    return Course(
        _share(lags, 0.5), _share(lags, 0.99), lags[-1][0] if lags else 0.0,
        backlog_max, caught_up, batches,
    )  # fmt: skip


def _take(waiting: deque[tuple[float, float]], size: float) -> list[tuple[float, float]]:
    """Remove and return the oldest ``size`` of the waiting messages. A second's messages may be
    split."""
    found: list[tuple[float, float]] = []
    while waiting and size > 1e-9:
        born, count = waiting.popleft()
        part = min(count, size)
        if part < count:
            waiting.appendleft((born, count - part))
        if part:
            found.append((born, part))
        size -= part
    return found


def _share(lags: Sequence[tuple[float, float]], share: float) -> float:
    """Return the lag that this share of the messages does not exceed. ``lags`` must be sorted."""
    left = share * sum(count for _, count in lags)
    for lag, count in lags:
        left -= count
        if left <= 0:
            return lag
    return 0.0


# ---------------------------------------------------------------------- the tables


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def needs() -> str:
    """Return the table of the resources for rates."""
    rows = []
    for per_s in (10_000, 100_000, 1_000_000):
        for batched in (True, False):
            found = needed(per_s, choices=replace(PLANNED, batched=batched))
            rows.append(
                [
                    f"{per_s:,}",
                    "of 64" if batched else "single",
                    f"{found.brokers} ({found.why})",
                    f"{found.cores}",
                    f"{found.executors}",
                    f"{_gigabits(found.into_brokers)} in, {_gigabits(found.out_of_brokers)} out",
                    _gigabits(found.into_storage),
                ]
            )
    heads = ["messages a second", "sends", "brokers (bound by)", "Spark cores", "executors of 8",
             "brokers' network, Gbit/s", "into storage, Gbit/s"]  # fmt: skip
    return table(heads, rows)


def archives() -> str:
    """Return the table for archives of 100 TB."""
    rows = []
    for per_s in (100_000, 1_000_000):
        found = archive(100 * TB, per_s)
        rows.append(
            [
                f"{per_s:,}",
                f"{found.messages / 1e12:.2f} · 10¹²",
                f"{found.files:,}",
                f"{found.fill_days:,.0f} days",
                f"{found.read_core_h:,.0f} core hours",
                f"{found.read_core_h / cores_needed(per_s, MEASURED, PLANNED):,.0f} h",
            ]
        )
    heads = ["messages a second", "messages", "files of 128 MB", "full after", "reading all of it",
             "with the stream's cores"]  # fmt: skip
    return table(heads, rows)


def sensitivity() -> str:
    """Return the table of the resources for 1 M messages per second when one assumption changes."""
    cases = {
        "as planned": (MEASURED, PLANNED),
        "single sends": (MEASURED, replace(PLANNED, batched=False)),
        "Spark costs twice as much": (replace(MEASURED, spark_us=2 * MEASURED.spark_us), PLANNED),
        "records of 1.5 KB": (replace(MEASURED, log_bytes=1_500), PLANNED),
        "kept for 72 h on the brokers": (MEASURED, replace(PLANNED, retention_h=72)),
        "two slaves each": (MEASURED, replace(PLANNED, slaves=2)),
        "five readers": (MEASURED, replace(PLANNED, readers=5)),
        "an outage of 4 h, made up for in 4 h": (MEASURED, replace(PLANNED, outage_s=4 * 3_600)),
        "25 Gbit/s": (MEASURED, replace(PLANNED, broker_network=25 * GIGABIT)),
    }
    rows = []
    for name, (costs, choices) in cases.items():
        found = needed(1_000_000, costs, choices)
        rows.append([name, f"{found.brokers}", found.why, f"{found.cores}"])
    return table(["what is otherwise", "brokers", "bound by", "Spark cores"], rows)


def courses() -> str:
    """Return the table of a day with 1 M messages per second and an hour's outage in the
    morning."""
    rows = []
    base = cores_needed(1_000_000, MEASURED, PLANNED)
    for share in (0.6, 0.8, 1.0, 1.5):
        cores = round(base * share)
        capacity = cores / MEASURED.spark_us * 1e6
        for outage in ((0, 0), (8 * 3_600, 9 * 3_600)):
            found = simulate(day(1_000_000), capacity, batch_s=MEASURED.batch_s, outage=outage)
            away = outage[1] > 0
            rows.append(
                [
                    f"{cores}",
                    "8 to 9 h" if away else "none",
                    _span(found.lag_p50_s),
                    _span(found.lag_p99_s),
                    _span(found.lag_max_s),
                    f"{found.backlog_max / 1e6:,.0f} M",
                    _span(found.caught_up_s) if away else "",
                ]
            )
    heads = ["cores", "away", "lag p50", "p99", "longest", "largest backlog", "caught up after"]
    return table(heads, rows)


def plans() -> str:
    """Return the table of a batch that reads 10 TB of 100 brokers."""
    per_broker = 10 * TB // MEASURED.log_bytes // spark_plan.BROKERS
    rows = []
    for name, case in spark_plan.cases(per_broker).items():
        found = spark_plan.run(case, MEASURED.spark_us, MEASURED.pull_us)
        rows.append(
            [
                name,
                f"{found.tasks:,}",
                _span(found.seconds),
                *(_times(found.skew[tenth]) for tenth in (0, 4, 8, 9)),
                _between(min(found.busy), max(found.busy)),
            ]
        )
    heads = ["plan", "tasks", "time", "skew in the 1st tenth", "5th", "9th", "last",
             "brokers that are read"]  # fmt: skip
    return table(heads, rows)


def _between(least: int, most: int) -> str:
    return f"{most}" if least == most else f"{least} to {most}"


def _times(skew: float) -> str:
    return f"{skew:.1f}" if skew < 10 else f"{skew:.0f}"


def _gigabits(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GIGABIT:,.1f}"


def _span(seconds: float) -> str:
    if math.isnan(seconds):
        return "not that day"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"


TABLES: Final = {
    "needs": needs,
    "archives": archives,
    "courses": courses,
    "plans": plans,
    "sensitivity": sensitivity,
}


def written(page: str) -> str:
    """Return the page with its tables updated."""
    tables = {name: make() for name, make in TABLES.items()}
    return write_tables(page, "scripts/spark_capacity.py", tables)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
