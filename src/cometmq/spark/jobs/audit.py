"""Looks through whole stores: every record, every queue entry, every index entry, both ways.

The work is that of ``cometmq store verify``, a piece a log file and a piece some hundred queues;
here Spark shares it out, so that a cluster which sees the directory looks at large ones. The store
must stand still: a stopped broker's, or a snapshot of a running one's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from cometmq.spark.jobs.pool import SparkPool
from cometmq.spark.jobs.progress import Progress, silent
from cometmq.spark.jobs.words import Word
from cometmq.spark.options import BadOption
from cometmq.store.config import StoreConfig
from cometmq.store.tools.findings import Severity
from cometmq.store.tools.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from cometmq.store.tools.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which stores, and how thoroughly."""

    stores: Annotated[tuple[str, ...], Word("A store directory that all executors see.")] = ()
    full: Annotated[
        bool, Word("Decode every record, also where CometMQ's seals say that nothing changed.")
    ] = False


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that is wrong (``damage``) or worth knowing (``note``); ``offset`` is physical, -1
    for none, and ``count`` things of the kind are meant."""

    severity: str
    kind: str
    path: str
    offset: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, and what was found."""

    LINES: ClassVar[str] = "findings"

    ok: bool
    log_bytes: int
    records: int
    queues: int
    entries: int
    index_entries: int
    sealed_files: int
    findings: tuple[Found, ...]


def run(spark: SparkSession, options: Options, progress: Progress = silent) -> Report:
    """Audit stores. Raises BadOption, NoStore, StoreInUse, OSError."""
    if not options.stores:
        raise BadOption("stores", "name a store directory")

    def pool(shared: object, _processes: int, _told: Callable[[int], None]) -> SparkPool:
        return SparkPool(spark, shared, progress)

    found = [
        verify(StoreConfig(store_path_root_dir=store), full=options.full, pool=pool)
        for store in options.stores
    ]
    return Report(
        all(each.is_sound for each in found),
        sum(each.log_bytes for each in found),
        sum(each.records for each in found),
        sum(each.queues for each in found),
        sum(each.entries for each in found),
        sum(each.index_entries for each in found),
        sum(each.sealed_files for each in found),
        tuple(_told(finding) for each in found for finding in each.findings),
    )


def _told(finding: Finding) -> Found:
    severity = "damage" if finding.severity is Severity.DAMAGE else "note"
    return Found(severity, finding.kind, finding.path, finding.offset, finding.count, finding.text)
