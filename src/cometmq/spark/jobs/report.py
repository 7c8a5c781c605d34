"""Report on a topic of changes: the busiest groups and hours, the delay until storing, and the
rate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import functions as f

from cometmq.spark.jobs.changes import with_group

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUSIEST: Final = 10
_PERCENTILES: Final = (50, 95, 99)


class ChangeReport(msgspec.Struct, frozen=True):
    """``busiest`` are (group, hour, changes), the most changes first. Lags are from birth to
    storing.

    ``per_s`` is the number of changes per second between the first and the last one stored.
    """

    changes: int
    groups: int
    busiest: list[tuple[str, str, int]]
    lag_ms: dict[str, int]
    per_s: float


def make_report(spark: SparkSession, changes: Path, target: Path, group_by: str) -> ChangeReport:
    """Read all changes, write the report into ``target`` and return it."""
    if not any(changes.glob("batch=*/*.parquet")):
        return ChangeReport(0, 0, [], {}, 0.0)
    good = spark.read.parquet(str(changes)).where("problem is null")
    counts = _by_hour(good, group_by)
    hours = str(target / "changes_by_hour")
    counts.write.mode("overwrite").parquet(hours)
    written = spark.read.schema(counts.schema).parquet(hours)
    totals = written.agg(f.sum("changes").alias("n"), f.count_distinct("of").alias("groups"))
    total = totals.head()
    assert total is not None
    top = written.orderBy(f.desc("changes"), "of", "hour").limit(BUSIEST).collect()
    lag_ms, per_s = _times(good)
    report = ChangeReport(
        changes=total["n"] or 0,
        groups=total["groups"],
        busiest=[(row["of"] or "?", row["hour"], row["changes"]) for row in top],
        lag_ms=lag_ms,
        per_s=per_s,
    )
    (target / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    return report


def _by_hour(changes: DataFrame, group_by: str) -> DataFrame:
    hour = f.date_format(f.timestamp_millis("at_ms"), "yyyy-MM-dd HH:00").alias("hour")
    grouped = with_group(changes, group_by).groupBy("of", hour)
    return grouped.agg(f.count("*").alias("changes"))


def _times(changes: DataFrame) -> tuple[dict[str, int], float]:
    stored = f.unix_millis("store_timestamp")
    lag = stored - f.unix_millis("born_timestamp")
    shares = f.array(*(f.lit(percent / 100) for percent in _PERCENTILES))
    found = changes.agg(
        f.percentile_approx(lag, shares, 10_000).alias("lags"),
        f.max(lag).alias("longest"),
        f.count("*").alias("n"),
        (f.max(stored) - f.min(stored)).alias("span_ms"),
    ).head()
    if found is None or not found["n"]:
        return {}, 0.0
    lag_ms = {f"p{share}": int(v) for share, v in zip(_PERCENTILES, found["lags"], strict=True)}
    per_s = found["n"] * 1000 / max(found["span_ms"], 1)
    return lag_ms | {"max": int(found["longest"])}, round(per_s, 1)
