"""Rebuilds a store's queues and index from its log in a new directory: the same queue files that
the broker wrote, and index files with the same content.

``cometmq store repair`` repairs a store in place with one process. This job is for a log without
queues, or a large one. The target must be empty at first and gets ``consumequeue`` and ``index``,
to be moved into the store's directory while no broker runs on it. The driver and all executors must
see both directories.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cometmq.spark.jobs import rebuilding
from cometmq.spark.jobs.pool import SparkPool
from cometmq.spark.jobs.progress import Progress, silent
from cometmq.spark.jobs.rebuilding import LogShare, Plan, QueueShares, Share
from cometmq.spark.jobs.words import Word
from cometmq.spark.options import BadOption
from cometmq.store.config import StoreConfig, delay_levels_ms
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.tools.directory import StoreInUse, look_into
from cometmq.store.tools.repair import sizes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES_A_TASK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The directories of the log and of the new files. Sizes of files are taken from the store's
    existing files if it has some, else from these options; 0 is the broker's default."""

    store: Annotated[str, Word("The store directory; only its commitlog is needed.")] = ""
    target: Annotated[str, Word("A new directory for consumequeue and index.")] = ""
    queue_file_bytes: Annotated[int, Word("Size of a queue file.")] = 0
    index_slots: Annotated[int, Word("Slots of an index file.")] = 0
    index_entries: Annotated[int, Word("Entries of an index file.")] = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of the log that are no record, and therefore have no entries."""

    start: int
    stop: int
    problem: str


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run. ``ok`` means that the log has no gaps. ``older`` records belong to topics
    that were deleted and recreated; they are in no queue."""

    ok: bool
    records: int
    queues: int
    queue_files: int
    entries: int
    older: int
    keys: int
    index_files: int
    gaps: tuple[Gap, ...]


def run(spark: SparkSession, options: Options, progress: Progress = silent) -> Report:
    """Rebuild the files. Raises BadOption, NoStore, StoreInUse, OSError."""
    if not options.store or not options.target:
        raise BadOption("target" if options.store else "store", "is required")
    target = Path(options.target)
    if any((target / name).exists() for name in ("consumequeue", "index", "aside")):
        raise BadOption("target", f"{target} has queues or an index: name a new directory")
    files = ReadOnlyFiles()
    config = StoreConfig(store_path_root_dir=options.store)
    directory = look_into(config, files)
    if directory.holder:
        raise StoreInUse(directory.root, directory.holder)
    sizes = sizes_of(config, directory, files)
    plan = Plan(
        target,
        target / "aside",
        options.queue_file_bytes or sizes.queue_file_bytes,
        options.index_slots or sizes.max_hash_slot_num,
        options.index_entries or sizes.max_index_num,
        delay_levels_ms(sizes.message_delay_level),
    )
    for folder in (plan.aside, target / "consumequeue", target / "index"):
        folder.mkdir(parents=True)
    try:
        with SparkPool(spark, plan, progress) as pool:
            logs = sorted(
                pool.run(rebuilding.read_log, directory.log_files), key=lambda each: each.base
            )
            queues = list(_queues(logs))
            some = [queues[at : at + QUEUES_A_TASK] for at in range(0, len(queues), QUEUES_A_TASK)]
            counts = list(pool.run(rebuilding.write_queues, some))
            keys = [log.keys for log in logs]
            pieces = rebuilding.index_pieces(plan, keys)
            names = rebuilding.name_index(plan, list(pool.run(rebuilding.write_index, pieces)))
    finally:
        shutil.rmtree(plan.aside)
    # A gap at the end of the log is no damage: it is the end itself, or one that a crash left.
    gaps = tuple(
        Gap(gap.start, gap.stop, gap.problem)
        for log in logs
        for gap in log.gaps
        if not (gap.open and log is logs[-1])
    )
    return Report(
        not gaps,
        sum(log.records for log in logs),
        len(queues),
        sum(files for files, _, _ in counts),
        sum(entries for _, entries, _ in counts),
        sum(older for _, _, older in counts),
        sum(share.count for share in keys),
        len(names),
        gaps,
    )


def _queues(logs: Iterable[LogShare]) -> Iterable[QueueShares]:
    """Yield the queues of all log files, sorted by name."""
    found: dict[tuple[str, int], list[Share]] = {}
    for log in logs:
        for topic, queue_id, share in log.queues:
            found.setdefault((topic, queue_id), []).append(share)
    for (topic, queue_id), shares in sorted(found.items()):
        yield QueueShares(topic, queue_id, tuple(shares))
