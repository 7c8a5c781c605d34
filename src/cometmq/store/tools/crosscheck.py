"""Checks of a store as a whole, based on the results for its single files; checks of its tables.

After a clean stop everything must match. After a crash the end of the log may be torn, and queues
and index may lag; the next start repairs that. The broker's table files beside the store are
decoded with the same types as in a broker.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from cometmq.core.errors import CometError
from cometmq.message.record import FIXED_BYTES
from cometmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.protocol.fastjson import parse_json
from cometmq.store.checkpoint import CHECKPOINT_BYTES
from cometmq.store.files import read_file
from cometmq.store.layout import file_name
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.tools.directory import size_of
from cometmq.store.tools.logfile import read_record
from cometmq.store.tools.queues import MissingEntries, MissingReason, join_missing

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.directory import StoreDirectory
    from cometmq.store.tools.findings import Findings
    from cometmq.store.tools.logcheck import LogOutcome, Surroundings
    from cometmq.store.tools.queues import QueueSpan


def judge(
    config: StoreConfig,
    files: ReadOnlyFiles,
    around: Surroundings,
    spans: list[QueueSpan],
    outcomes: list[LogOutcome],
    findings: Findings,
) -> None:
    """Add the findings that depend on all files together. Raises OSError."""
    directory = around.directory
    _judge_directory(files, directory, findings)
    _judge_log(directory, outcomes, findings)
    topics = check_tables(files, directory.root, findings)
    bounds = {
        (queue.topic, queue.queue_id): span
        for queue, span in zip(around.queues, spans, strict=True)
    }
    _judge_missing(directory, outcomes, bounds, topics, findings)
    _judge_index(config, files, around, outcomes, findings)


def _judge_directory(files: ReadOnlyFiles, directory: StoreDirectory, findings: Findings) -> None:
    root = directory.root
    if not directory.is_clean:
        findings.note(
            "crashed", root, -1, "its broker was not stopped cleanly; the next start recovers it"
        )
    for name in directory.others:
        findings.note(
            "stray-file", os.path.join(directory.log_directory, name), -1,
            "it is not a log file; a Java broker does not start while it is there",
        )  # fmt: skip
    checkpoint = os.path.join(root, "checkpoint")
    if not files.exists(checkpoint):
        findings.note("checkpoint", checkpoint, -1, "it is missing, so a start reads the whole log")
    elif (size := size_of(files, checkpoint)) != CHECKPOINT_BYTES:
        findings.damage("checkpoint", checkpoint, -1, f"it is {size} bytes long, not 4096")
    seals = BlockChecksums(files, root)
    bases = {file.base for file in directory.log_files}
    for base in sorted((seals.bases | seals.doubted) - bases):
        findings.note("seal", seals.path(base), -1, "the log file that it belongs to is missing")


def _judge_log(directory: StoreDirectory, outcomes: list[LogOutcome], findings: Findings) -> None:
    size = directory.log_file_bytes
    expected = directory.log_start
    for file in directory.log_files:
        if file.base != expected:
            findings.damage(
                "log-file-missing", directory.log_directory, expected,
                f"{file_name(expected)} is missing, {file_name(file.base)} follows",
            )  # fmt: skip
        if file.size_bytes != size:
            findings.damage(
                "log-file-size", file.path, -1,
                f"it is {file.size_bytes} bytes long, the other log files have {size}",
            )  # fmt: skip
        expected = file.base + size
    used = [outcome for outcome in outcomes if outcome.records or outcome.closed or outcome.gaps]
    for outcome in used:
        _judge_gaps(directory, outcome, outcome is used[-1], findings)
    end = directory.log_start
    if used:
        # After a blank the log continues in the next file, even if that is empty.
        last = used[-1]
        end = directory.by_number[last.number].base + size if last.closed else last.end
    _judge_end(directory, end, findings)


def _judge_gaps(
    directory: StoreDirectory, outcome: LogOutcome, is_last: bool, findings: Findings
) -> None:
    path = directory.by_number[outcome.number].path
    positions = directory.positions
    proven = positions.durable if positions is not None else -1
    for gap in outcome.gaps:
        text = f"{gap.stop - gap.start} bytes are not a record: {gap.problem}"
        if directory.is_clean and gap.open and is_last and positions is None:
            findings.note("behind-end", path, gap.start, f"{text}; the log ends before them")
        elif not directory.is_clean and gap.start >= proven and is_last:
            findings.note("torn-end", path, gap.start, f"{text}; the next start removes them")
        else:
            findings.damage("gap", path, gap.start, text)
    if not is_last and not outcome.closed and not any(gap.open for gap in outcome.gaps):
        findings.damage(
            "gap", path, outcome.end, "the log stops here, but the next file has records"
        )


def _judge_end(directory: StoreDirectory, end: int, findings: Findings) -> None:
    positions = directory.positions
    if positions is None:
        return
    noted = positions.written if directory.is_clean else positions.durable
    if end < noted:
        findings.damage(
            "log-short", directory.log_directory, end,
            f"the log ends here, {noted - end} bytes before the position recorded as stored",
        )  # fmt: skip
    elif end > noted and directory.is_clean:
        findings.damage(
            "log-long", directory.log_directory, noted,
            f"records up to {end} are after the end that was recorded at the last stop",
        )  # fmt: skip


def _judge_missing(
    directory: StoreDirectory,
    outcomes: list[LogOutcome],
    bounds: dict[tuple[str, int], QueueSpan],
    topics: Topics,
    findings: Findings,
) -> None:
    groups: dict[tuple[str, int], dict[MissingReason, MissingEntries]] = {}
    for outcome in outcomes:
        for each in outcome.missing:
            reasons = groups.setdefault((each.topic, each.queue_id), {})
            known = reasons.get(each.reason)
            reasons[each.reason] = each if known is None else join_missing(known, each)
    for place, reasons in groups.items():
        rest = reasons.pop(MissingReason.UNKNOWN, None)
        if rest is not None:
            # The unexamined rest is added to the most frequent reason of those examined.
            main = max(reasons.values(), key=lambda each: each.amount)
            reasons[main.reason] = join_missing(main, rest)
        for each in reasons.values():
            _report_missing(directory, each, bounds.get(place), topics, findings)


def _report_missing(
    directory: StoreDirectory,
    missing: MissingEntries,
    span: QueueSpan | None,
    topics: Topics,
    findings: Findings,
) -> None:
    path = os.path.join(directory.root, "consumequeue", missing.topic, str(missing.queue_id))
    which = (
        f"{missing.amount} records (queue offsets {missing.first_offset} to {missing.last_offset})"
    )
    behind = span is None or missing.first_offset >= span.end
    is_gone = missing.reason is MissingReason.NO_QUEUE and missing.topic not in topics.names
    # The topic was created again, and this queue has got no messages since.
    is_former = missing.last_physical_offset < topics.deleted.get(missing.topic, 0)
    if missing.reason is MissingReason.NEWER or is_gone or is_former:
        findings.note(
            "deleted-topic", path, missing.physical_offset,
            f"{which} belong to a deleted topic", missing.amount,
        )  # fmt: skip
    elif behind and not directory.is_clean:
        findings.note(
            "queue-behind", path, missing.physical_offset,
            f"{which} have no entry yet; the next start adds them", missing.amount,
        )  # fmt: skip
    else:
        findings.damage(
            "record-without-entry", path, missing.physical_offset,
            f"{which} have no entry: {missing.reason.value}", missing.amount,
        )  # fmt: skip


def _judge_index(
    config: StoreConfig,
    files: ReadOnlyFiles,
    around: Surroundings,
    outcomes: list[LogOutcome],
    findings: Findings,
) -> None:
    directory = around.directory
    path = os.path.join(directory.root, "index")
    late = sum(outcome.late_keys for outcome in outcomes)
    early = sum(outcome.early_keys for outcome in outcomes)
    if not any(fact.entries for fact in around.indexes):
        if late and config.message_index_enable:
            findings.note("no-index", path, -1, f"{late} keys of messages are not indexed", late)
        return
    if early:
        findings.note(
            "index-begins-later", path, around.index_bounds[0],
            f"{early} keys of messages before this are not indexed", early,
        )  # fmt: skip
    if late:
        first = min(outcome.late_from for outcome in outcomes if outcome.late_keys)
        add = findings.damage if directory.is_clean else findings.note
        add("index-behind", path, first, f"{late} keys from here on are not indexed", late)
    for fact in around.indexes:
        ends = ((fact.begin_phys, fact.begin_ms, "first"), (fact.end_phys, fact.end_ms, "last"))
        for place, noted_ms, which in ends if fact.entries else ():
            store_ms = _store_ms(files, directory, place)
            # After a crash, a start knows the last time only to the second.
            if store_ms >= 0 and not 0 <= noted_ms - store_ms < (1000 if which == "last" else 1):
                findings.damage(
                    "index-header", fact.path, place,
                    f"its header says that the {which} record was stored at {noted_ms}, the record "
                    f"says {store_ms}",
                )  # fmt: skip


def _store_ms(files: ReadOnlyFiles, directory: StoreDirectory, place: int) -> int:
    """Return the store time of the record at a physical offset, ms; -1 if it is unknown."""
    for file in directory.log_files:
        if file.base <= place < file.base + file.size_bytes - FIXED_BYTES:
            record = read_record(files, file, place)
            return -1 if record is None else record.store_ms
    return -1


_TABLES: tuple[tuple[str, str, Any], ...] = (
    ("topics.json", "topicConfigTable", TopicConfig),
    ("subscriptionGroup.json", "subscriptionGroupTable", SubscriptionGroupConfig),
    ("consumerOffset.json", "offsetTable", dict[int, int]),
    ("delayOffset.json", "offsetTable", int),
    ("consumerFilter.json", "filterDataByTopic", dict[str, Any]),
)
_DELETED = "cometmqDeleted"


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of all topics, and for deleted ones the log offset at which they ended."""

    names: frozenset[str] = frozenset()
    deleted: dict[str, int] = field(default_factory=dict)


def check_tables(files: ReadOnlyFiles, root: str, findings: Findings) -> Topics:
    """Report tables that a broker cannot read; return the topics.

    If a table cannot be read, its backup is read instead, as in a start. Raises OSError.
    """
    topics = Topics()
    for name, key, value_type in _TABLES:
        path = os.path.join(root, "config", name)
        for place in (path, path + ".bak"):
            raw = read_file(files, place)
            if raw is None:
                continue
            try:
                found = _checked(raw, key, value_type)
                read = _topics(found, key)
            except (ValueError, TypeError, CometError) as error:
                findings.damage("table", place, -1, f"it cannot be read: {error}")
                continue
            if name == "topics.json":
                topics = read
            break
    return topics


def _checked(raw: bytes, key: str, value_type: Any) -> dict[str, Any]:
    """Return the contents of a table's file. Raises ValueError, TypeError or CometError."""
    table = parse_json(raw)
    if not isinstance(table, dict) or key not in table:
        raise ValueError(f"it lacks {key}")
    content = table[key] or {}
    if not isinstance(content, dict):
        raise ValueError(f"{key} is not an object")
    keys: Any = int if value_type is int else str
    for name, value in content.items():
        try:
            msgspec.convert({name: value}, dict[keys, value_type], strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{key}, {str(name)[:100]!r}: {error}") from None
    version = table.get("dataVersion")
    if isinstance(version, dict):
        for each in ("counter", "timestamp"):
            int(version.get(each, 0))
    return table


def _topics(table: dict[str, Any], key: str) -> Topics:
    deleted = table.get(_DELETED)
    ends = deleted.items() if isinstance(deleted, dict) else ()
    return Topics(
        frozenset(str(name) for name in table[key] or {}),
        {str(name): int(end) for name, end in ends},
    )
