"""Repair of a stopped store: rebuilds bad queues and index, and removes damage from the log.

The repair is a start (recovery/opening.py) with additional instructions: it reads the whole log,
rebuilds the chosen queues or the index although a start would find them valid, and treats damage in
the log as the policy says. As in any start, everything that is removed is set aside first, and an
interrupted repair does no harm.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cometmq.core.plural import plural
from cometmq.store.config import DamagePolicy
from cometmq.store.files import PosixFiles, ReadOnlyFiles
from cometmq.store.index import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from cometmq.store.recovery.opening import Rebuild, open_store
from cometmq.store.tools.directory import find_queues, size_of
from cometmq.store.tools.findings import Finding, Findings, Severity
from cometmq.store.tools.indexes import read_index_header
from cometmq.store.tools.verify import Verified, verify

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files
    from cometmq.store.parts import RecoveryReport
    from cometmq.store.tools.directory import StoreDirectory

#: Called with the position of the scan and the expected end of the log.
Progress = Callable[[int, int], None]

#: Kinds of findings about the log itself, which cannot be rebuilt from other files.
_LOST: Final = frozenset({"gap", "body", "log-file-missing", "log-file-size", "log-short"})


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The plan of a repair: the queues to rebuild, and whether to rebuild the index.

    ``lost`` are findings about the log itself, which the damage policy decides; ``others`` are
    findings that a repair cannot fix.
    """

    queues: frozenset[tuple[str, int]]
    index: bool
    lost: tuple[Finding, ...]
    others: tuple[Finding, ...]

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.queues or self.index or self.lost)

    def lines(self, policy: DamagePolicy) -> list[str]:
        """Return lines for a person that describe the plan."""
        lines = [f"make queue {number} of {topic} again" for topic, number in sorted(self.queues)]
        if self.index:
            lines.append("make the index again")
        lines += [
            f"{_POLICY_LINES[policy]} {each.path} at offset {each.offset}" for each in self.lost
        ]
        return lines


_POLICY_LINES: Final = {
    DamagePolicy.REFUSE: "do nothing about the damage (choose --damage skip or truncate) in",
    DamagePolicy.SKIP: "omit what is damaged in",
    DamagePolicy.TRUNCATE: "end the log before the damage in",
}


def plan_repair(
    verified: Verified,
    files: ReadOnlyFiles,
    *,
    topics: Iterable[str] = (),
    all_queues: bool = False,
    index: bool = False,
) -> RepairPlan:
    """Plan the repair of a verified store.

    ``topics`` and ``all_queues`` select queues to rebuild whether they look valid or not; ``index``
    does the same for the index.
    """
    directory = verified.directory
    known = {(queue.topic, queue.queue_id) for queue in find_queues(files, directory)}
    wanted = set(topics)
    queues = {key for key in known if all_queues or key[0] in wanted}
    lost: list[Finding] = []
    others: list[Finding] = []
    for finding in verified.findings:
        if finding.severity is not Severity.DAMAGE:
            continue
        if finding.kind in _LOST:
            lost.append(finding)
        elif finding.kind.startswith("index-"):
            index = True
        elif (key := _queue_of(finding.path, directory)) is not None:
            queues.add(key)
        elif finding.kind.startswith("queue-"):
            # The finding names a log file: the fault may be in any queue.
            queues |= known
        else:
            others.append(finding)
    return RepairPlan(frozenset(queues), index, tuple(lost), tuple(others))


def _queue_of(path: str, directory: StoreDirectory) -> tuple[str, int] | None:
    """Return the queue to which a directory or file belongs; None if it belongs to no queue."""
    top = os.path.join(directory.root, "consumequeue") + os.sep
    if not path.startswith(top):
        return None
    topic, _, rest = path[len(top) :].partition(os.sep)
    number = rest.partition(os.sep)[0]
    return (topic, int(number)) if number.isdecimal() else None


def sizes_of(config: StoreConfig, directory: StoreDirectory, files: ReadOnlyFiles) -> StoreConfig:
    """Return ``config`` with the file sizes of a store, as far as its files show them."""
    positions = directory.positions
    found = replace(
        config,
        mapped_file_size_commit_log=(positions and positions.file_bytes)
        or directory.log_file_bytes,
        mapped_file_size_consume_queue=directory.queue_file_bytes,
    )
    for path in directory.index_files:
        header = read_index_header(files, path, config, Findings())
        if header is not None and header.slots:
            room = size_of(files, path) - HEADER_BYTES - header.slots * SLOT_BYTES
            return replace(found, max_hash_slot_num=header.slots, max_index_num=room // ENTRY_BYTES)
    return found


def verify_and_plan(
    config: StoreConfig,
    *,
    processes: int = 0,
    topics: Iterable[str] = (),
    all_queues: bool = False,
    index: bool = False,
    began: Callable[[int], None] = lambda total_bytes: None,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> tuple[Verified, RepairPlan, StoreConfig]:
    """Verify a store; return the result, the repair plan, and the settings for the repair.

    See :func:`verify` and :func:`plan_repair` for the parameters and errors.
    """
    files = ReadOnlyFiles()
    found = verify(config, files, processes=processes, began=began, progress=progress)
    plan = plan_repair(found, files, topics=topics, all_queues=all_queues, index=index)
    return found, plan, sizes_of(config, found.directory, files)


def repair(
    config: StoreConfig,
    plan: RepairPlan,
    clock: Clock,
    *,
    files: Files | None = None,
    progress: Progress = lambda position, end: None,
) -> RecoveryReport:
    """Execute a plan; ``config`` has the policy for damage in the log.

    ``progress`` is called with the position of the scan and the expected end of the log. Raises
    StoreLocked, StoreCorrupt (for damage that the policy refuses), StoreFull, OSError.
    """
    rebuild = Rebuild(plan.queues, plan.index, 0)
    store = open_store(config, clock, files or PosixFiles(), rebuild, progress)
    report = store.report
    assert report is not None
    store.maintenance.shrunk = report.shrunk
    store.close()
    return report


def report_lines(report: RecoveryReport) -> list[str]:
    """Return lines for a person that describe what a repair did."""
    lines = [
        f"omitted {plural(lost.next_offset - lost.offset, 'byte')} of {lost.path} at offset "
        f"{lost.offset}"
        for lost in report.damages
        if lost.offset != report.cut
    ]
    if report.cut >= 0:
        lines.append(f"the log ends at {report.cut}")
    lines += [f"made queue {number} of {topic} again" for topic, number in report.remade]
    lines += [f"set aside: {path}" for path in report.kept]
    lines.append(
        f"repaired: {plural(report.records, 'record')} read in {report.duration_ms / 1000:.1f} s, "
        f"the log ends at {report.end}"
    )
    if report.shrunk:
        lines.append(
            "The next start of CometMQ resets consumer offsets that are beyond the end of their "
            "queue; a Java broker does not: check consumerOffset.json."
        )
    return lines
