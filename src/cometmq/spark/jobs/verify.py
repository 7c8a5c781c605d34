"""Compares two stores or clusters message by message: a slave with its master, or a new cluster
with the one it was migrated from.

Messages correspond if broker, topic, queue and queue offset are the same; their bodies are compared
by CRC. The first pass compares blocks, which are ranges of offsets of a queue, by their number of
messages and their digest; this needs no sorting. The second pass reads only the blocks that differ,
and compares their messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cometmq.spark.jobs.inputs import InputOptions, messages
from cometmq.spark.jobs.job import JobOption, Progress, progress_reported, silent
from cometmq.spark.jobs.reach import without_account
from cometmq.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql import Column, Row, SparkSession

BLOCK: Final = 4_096
"""Number of offsets in a block."""

_COLUMNS: Final = ("broker_name", "topic", "queue_id", "queue_offset", "body_crc")
_QUEUE: Final = ("broker", "topic", "queue_id")
#: A block of a queue: broker, topic, queue id, number of the block.
_Block: TypeAlias = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(InputOptions):
    """The two sides to compare: the first in the options of all jobs, the other in ``other_*``.

    If each side has only one broker, the names of the brokers may differ.
    """

    other_nameservers: Annotated[str, JobOption("Name servers of the other side.")] = ""
    other_stores: Annotated[tuple[str, ...], JobOption("Store directories of the other side.")] = ()
    other_credentials: Annotated[
        str, JobOption("File with the account on the other side; the first one is not used there.")
    ] = ""
    other_brokers: Annotated[tuple[str, ...], JobOption("Broker names of those stores.")] = ()
    limit: Annotated[int, JobOption("Number of differences to list.")] = 100

    def other(self) -> InputOptions:
        """Return the inputs of the other side. Raises BadOption."""
        if not self.other_nameservers and not self.other_stores:
            raise BadOption(
                "other-stores", "the other side is missing: give its stores or name servers"
            )
        return replace(
            self,
            nameservers=self.other_nameservers,
            credentials=self.other_credentials,
            read_options=without_account(self.read_options),
            stores=self.other_stores,
            brokers=self.other_brokers,
            archive="",
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A queue offset at which the sides differ.

    ``kind`` is ``missing`` if only one side has a message there, ``count`` if the sides have
    different numbers of messages there, ``crc`` if their bodies differ. A side without a message
    has a count of 0 and no CRC.
    """

    kind: str
    broker: str
    topic: str
    queue: int
    offset: int
    count: int
    other_count: int
    crc: int | None
    other_crc: int | None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of a run: the numbers of messages on both sides, and the first differences.

    ``differing`` counts all differences. The first side has no message at ``missing`` of these
    offsets, the other side at ``other_missing``.
    """

    LINES: ClassVar[str] = "differences"

    ok: bool
    messages: int
    other_messages: int
    differing: int
    missing: int
    other_missing: int
    differences: tuple[Difference, ...]


def run(spark: SparkSession, options: VerifyOptions, progress: Progress = silent) -> VerifyReport:
    """Compare the two sides. Raises BadOption, and the errors of reads."""
    sides = [messages(spark, each, _COLUMNS) for each in (options, options.other())]
    with progress_reported(spark, "sums", progress):
        blocks = _digests(sides).collect()
    # If each side has only one broker, the names of the two may differ.
    ignores_brokers = all(
        len({row.broker for row in blocks if row.side == side}) <= 1 for side in (0, 1)
    )
    counts = [sum(row.messages for row in blocks if row.side == side) for side in (0, 1)]
    bad = _differing_blocks(blocks, ignores_brokers)
    if not bad:
        return VerifyReport(True, counts[0], counts[1], 0, 0, 0, ())
    with progress_reported(spark, "differences", progress):
        found = _differing_messages(spark, sides, bad, ignores_brokers)
        limited = found.orderBy("topic", "queue_id", "queue_offset", "broker").limit(options.limit)
        differences = tuple(map(_difference, limited.collect()))
        one, other = f.col("count"), f.col("other_count")
        (totals,) = found.agg(
            f.count("*").alias("all"),
            f.count_if(one == 0).alias("missing"),
            f.count_if(other == 0).alias("other_missing"),
        ).collect()
    return VerifyReport(
        False, counts[0], counts[1], totals["all"], totals["missing"], totals["other_missing"],
        differences,
    )  # fmt: skip


def _with_block(side: DataFrame) -> DataFrame:
    """Return the messages of a side with the number of their block."""
    named = f.coalesce("broker_name", f.lit("")).alias("broker")
    block = f.expr(f"queue_offset div {BLOCK}").alias("block")
    return side.select(named, "topic", "queue_id", "queue_offset", "body_crc", block)


def _digests(sides: Sequence[DataFrame]) -> DataFrame:
    """Return the number of messages and the digest of each block, for both sides."""
    found = [
        _with_block(side)
        .groupBy(*_QUEUE, "block")
        .agg(
            f.count("*").alias("messages"),
            # XOR gives the same digest for any order of rows, so they need not be sorted.
            f.bit_xor(f.xxhash64("queue_offset", "body_crc")).alias("digest"),
        )
        .withColumn("side", f.lit(number))
        for number, side in enumerate(sides)
    ]
    return reduce(DataFrame.unionByName, found)


def _differing_blocks(blocks: Sequence[Row], ignores_brokers: bool) -> list[_Block]:
    """Return the blocks that differ between the sides."""
    found: list[dict[_Block, tuple[int, int]]] = [{}, {}]
    for row in blocks:
        broker = "" if ignores_brokers else row.broker
        found[row.side][broker, row.topic, row.queue_id, row.block] = (row.messages, row.digest)
    one, other = found
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _differing_messages(
    spark: SparkSession,
    sides: Sequence[DataFrame],
    blocks: list[_Block],
    ignores_brokers: bool,
) -> DataFrame:
    """Return the offsets in these blocks at which the sides differ, with both counts and CRCs."""
    names = [*_QUEUE, "block"]
    wanted = f.broadcast(
        spark.createDataFrame(blocks, "broker string, topic string, queue_id int, block bigint")
    )
    both: list[DataFrame] = []
    for number, side in enumerate(sides):
        located = _with_block(side)
        if ignores_brokers:
            located = located.withColumn("broker", f.lit(""))
        both.append(located.join(wanted, names, "semi").withColumn("side", f.lit(number)))
    grouped = reduce(DataFrame.unionByName, both).groupBy(*_QUEUE, "queue_offset")
    of_one, of_other = f.col("side") == 0, f.col("side") == 1
    found = grouped.agg(
        f.count_if(of_one).alias("count"),
        f.count_if(of_other).alias("other_count"),
        _crcs(of_one).alias("crcs"),
        _crcs(of_other).alias("other_crcs"),
    )
    differs = (f.col("count") != f.col("other_count")) | (f.col("crcs") != f.col("other_crcs"))
    return found.where(differs)


def _crcs(of_side: Column) -> Column:
    return f.array_sort(f.collect_list(f.when(of_side, f.col("body_crc"))))


def _difference(row: Row) -> Difference:
    kind = "missing" if 0 in (row["count"], row.other_count) else "crc"
    if kind == "crc" and row["count"] != row.other_count:
        kind = "count"
    first = [crcs[0] if crcs else None for crcs in (row.crcs, row.other_crcs)]
    return Difference(
        kind, row.broker, row.topic, row.queue_id, row.queue_offset, row["count"], row.other_count,
        *first,
    )  # fmt: skip
