"""Checks whole stores: compares records, queue entries and index entries with each other.

The checks are those of ``cometmq store verify``, split into one piece per log file, one per index
file, and one per few hundred queues. Spark distributes the pieces over a cluster whose executors
can read the directory. The store must not change: use the store of a stopped broker, or a snapshot
of a running broker's store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from cometmq.spark.jobs.job import JobOption, Progress, SparkPool, silent
from cometmq.spark.options import BadOption
from cometmq.store.config import StoreConfig
from cometmq.store.tools.findings import Severity
from cometmq.store.tools.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from cometmq.store.tools.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The stores to check, and how thoroughly."""

    stores: Annotated[
        tuple[str, ...], JobOption("Store directory that all executors can read.")
    ] = ()
    full: Annotated[
        bool,
        JobOption("Decode every record, even in files that CometMQ's seals show to be unchanged."),
    ] = False


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A finding: an error (``severity`` damage) or other information (note). ``offset`` is
    physical, -1 for none. ``count`` is the number of cases that the finding stands for."""

    severity: str
    kind: str
    path: str
    offset: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Result of an audit: the amounts of data checked, and the findings."""

    LINES: ClassVar[str] = "findings"

    ok: bool
    log_bytes: int
    records: int
    queues: int
    entries: int
    index_entries: int
    sealed_files: int
    findings: tuple[AuditFinding, ...]


def run(spark: SparkSession, options: AuditOptions, progress: Progress = silent) -> AuditReport:
    """Audit stores. Raises BadOption, NoStore, StoreInUse, OSError."""
    if not options.stores:
        raise BadOption("stores", "give a store directory")

    def pool(shared: object, _processes: int, _advance: Callable[[int], None]) -> SparkPool:
        return SparkPool(spark, shared, progress)

    found = [
        verify(StoreConfig(store_path_root_dir=store), full=options.full, pool=pool)
        for store in options.stores
    ]
    return AuditReport(
        all(each.is_sound for each in found),
        sum(each.log_bytes for each in found),
        sum(each.records for each in found),
        sum(each.queues for each in found),
        sum(each.entries for each in found),
        sum(each.index_entries for each in found),
        sum(each.sealed_files for each in found),
        tuple(_as_row(finding) for each in found for finding in each.findings),
    )


def _as_row(finding: Finding) -> AuditFinding:
    severity = "damage" if finding.severity is Severity.DAMAGE else "note"
    return AuditFinding(
        severity, finding.kind, finding.path, finding.offset, finding.count, finding.text
    )
