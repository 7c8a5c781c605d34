"""``cometmq store``: inspects, verifies and repairs stores of CometMQ and of Java brokers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from cometmq.cli import render
from cometmq.cli.command import Exit, Noun, Refused
from cometmq.cli.parser import Argument, Option
from cometmq.cli.render import Result, when
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError, SettingsError, StoreError
from cometmq.core.plural import plural
from cometmq.core.settings import build, parse_properties
from cometmq.store.config import DamagePolicy, StoreConfig

if TYPE_CHECKING:
    from rich.progress import Progress

    from cometmq.store.tools.erasure import Erasure, Way
    from cometmq.store.tools.findings import Finding
    from cometmq.store.tools.inspection import StoreInfo
    from cometmq.store.tools.logfile import Gap
    from cometmq.store.tools.verify import Verified

app = Noun("store", "Store directories; most commands need a store that no broker is using.")

Directory = Annotated[Path, Argument(metavar="DIR", help="The store directory.")]
ConfigFile = Annotated[
    Path | None,
    Option("-c", "--config", metavar="FILE", help="The broker's property file, if there is one."),
]
WhileRunning = Annotated[
    bool, Option("--while-running", help="Read the store although a broker is using it.")
]


class Body(StrEnum):
    """Output form of message bodies."""

    auto = "auto"
    text = "text"
    base64 = "base64"
    none = "none"


def settings(directory: Path, config: Path | None) -> StoreConfig:
    """Return the settings of the store in ``directory``: those of the file, with that directory.

    Raises SettingsError for an invalid line, OSError for a file that cannot be read.
    """
    values = {} if config is None else parse_properties(config.read_text(encoding="utf-8"))
    return replace(build(StoreConfig, values)[0], store_path_root_dir=str(directory))


@contextmanager
def refusing() -> Iterator[None]:
    """Turn errors of the store, the settings and the system into Refused: one line, exit code 2."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of the output has ended, which main handles
    except (StoreError, SettingsError) as error:
        raise Refused(str(error)) from error
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        raise Refused(f"{named}{error.strerror or error}") from error


class Bar:
    """Progress bar for bytes. It draws nothing if :func:`render.progress_console` returns None."""

    def __init__(self, what: str) -> None:
        self._progress: Progress | None = None
        console = render.progress_console()
        if console is None:
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
            TransferSpeedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def began(self, total_bytes: int) -> None:
        """Set the total number of bytes."""
        if self._progress is not None:
            self._progress.update(self._task, total=total_bytes)

    def advance(self, size_bytes: int) -> None:
        """Add bytes that are done."""
        if self._progress is not None:
            self._progress.advance(self._task, size_bytes)


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log file of a store. ``records`` is null if counting would mean reading the file."""

    file: str
    used_bytes: int
    records: int | None
    first_stored_at: datetime | None
    last_stored_at: datetime | None
    sealed: str


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """One topic of a store."""

    topic: str
    queues: int
    messages: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One index file of a store."""

    file: str
    entries: int
    first_stored_at: datetime | None
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Log offsets up to which a store noted its files as written and as synced to the device."""

    durable: int
    written: int
    synced: int
    clean: bool


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a store directory holds."""

    root: str
    log_directory: str
    file_system: str | None
    state: str
    last_written_by: str
    log_start: int
    log_end: int
    log_file_bytes: int
    queue_file_bytes: int
    checkpoint: Checkpoint | None
    warnings: list[str]
    log_files: list[LogFile]
    topics: list[StoredTopic]
    index_files: list[IndexFile]


@app.command("info", "store info /data/store", "store info /data/store -o json")
def info(
    directory: Directory, config: ConfigFile = None, while_running: WhileRunning = False
) -> StoreReport:
    """Show what a store holds: files, ranges, topics, ages, and the last writer."""
    from cometmq.store.tools.inspection import inspect_store

    with refusing():
        found = inspect_store(settings(directory, config), while_running=while_running)
    return report_of(found)


def report_of(found: StoreInfo) -> StoreReport:
    """Return the output of ``store info`` for an inspected store."""
    noted = found.positions
    checkpoint = (
        Checkpoint(noted.durable, noted.written, noted.synced, noted.clean) if noted else None
    )
    return StoreReport(
        found.root, found.log_directory, found.file_system or None, found.state,
        found.last_writer, found.log_start, found.log_end, found.log_file_bytes,
        found.queue_file_bytes, checkpoint, found.warnings,
        [
            LogFile(
                row.file, row.used_bytes, row.records if row.records >= 0 else None,
                when(row.first_stored_ms), when(row.last_stored_ms), row.seal,
            )
            for row in found.log
        ],
        [StoredTopic(row.topic, row.queues, row.messages) for row in found.topics],
        [
            IndexFile(
                row.file, row.entries, when(row.first_stored_ms), when(row.last_stored_ms)
            )
            for row in found.index
        ],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DamageRow:
    """One finding: damage or a note, where it is, and how many cases there are."""

    severity: str
    kind: str
    path: str
    offset: int | None
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a verification."""

    root: str
    sound: bool
    log_bytes: int
    log_files: int
    sealed_files: int
    records: int
    queues: int
    queue_entries: int
    index_entries: int
    seconds: float
    findings: list[DamageRow]


@app.command("verify", "store verify /data/store")
def verify(
    directory: Directory,
    config: ConfigFile = None,
    processes: Annotated[int, Option(min=0, help="Number of processes; 0: one per processor.")] = 0,
    full: Annotated[
        bool, Option("--full", help="Also decode every record of sealed files.")
    ] = False,
) -> Result[Verdict]:
    """Check every record, queue entry and index entry, and compare them with each other.

    Exit code 0: no damage. 1: damage was found. 2: the store could not be verified.
    """
    from cometmq.store.tools.verify import verify as verify_store

    clock = SystemClock()
    begun_ms = clock.monotonic_ms()
    with refusing(), Bar("verifying") as bar:
        found = verify_store(
            settings(directory, config), processes=processes, full=full,
            began=bar.began, progress=bar.advance,
        )  # fmt: skip
    return _verdict(found, (clock.monotonic_ms() - begun_ms) / 1000)


def _verdict(found: Verified, seconds: float) -> Result[Verdict]:
    rows = [
        DamageRow(
            each.severity.value, each.kind, each.path, each.offset if each.offset >= 0 else None,
            each.text, each.count,
        )
        for each in found.findings
    ]  # fmt: skip
    verdict = Verdict(
        found.directory.root, found.is_sound, found.log_bytes, len(found.directory.log_files),
        found.sealed_files, found.records, found.queues, found.entries, found.index_entries,
        round(seconds, 3), rows,
    )  # fmt: skip
    word = "sound" if found.is_sound else "DAMAGED"
    lines = [finding.line() for finding in found.findings]
    lines.append(
        f"{verdict.root} is {word}: {plural(found.records, 'record')} in "
        f"{plural(verdict.log_files, 'log file')} ({found.sealed_files} sealed), "
        f"{plural(found.entries, 'entry', 'entries')} of {plural(found.queues, 'queue')}, "
        f"{plural(found.index_entries, 'index entry', 'index entries')}, in {seconds:.1f} s"
    )
    return Result(
        [verdict], shown="\n".join(lines), problem="" if found.is_sound else _hint(found.findings)
    )


def _hint(findings: list[Finding]) -> str:
    """Return what to do about damage."""
    kinds = {finding.kind for finding in findings if finding.severity.value == "damage"}
    if kinds & {"block", "body", "gap", "log-file-missing", "log-file-size", "log-short"}:
        return (
            "The log is damaged: restore the file from a snapshot or copy if there is one, "
            "otherwise see cometmq store repair -h"
        )
    return (
        "The log is intact, and all other files can be rebuilt from it: see cometmq store repair -h"
    )


@app.command(
    "dump",
    "store dump /data/store --topic orders --key A-17 --since 2026-11-21T08:00 --limit 10",
)
def dump(
    directory: Directory,
    config: ConfigFile = None,
    start: Annotated[int, Option("--from", min=0, help="First physical offset.")] = 0,
    stop: Annotated[int | None, Option("--to", min=0, help="End at this physical offset.")] = None,
    topic: Annotated[str, Option(help="Only records of this topic.")] = "",
    queue: Annotated[
        int | None, Option(min=0, help="Only records of queues with this number.")
    ] = None,
    key: Annotated[str, Option(help="Only records with this key or unique key.")] = "",
    since: Annotated[
        str,
        Option(metavar="TIME", help="Stored at or after this time: ms, or 2026-11-21T12:00 (UTC)."),
    ] = "",
    until: Annotated[str, Option(metavar="TIME", help="Stored before this time.")] = "",
    limit: Annotated[int | None, Option(min=1, help="Largest number of records.")] = None,
    body: Annotated[
        Body, Option(help="Print bodies as text, as base64, or not at all.")
    ] = Body.auto,
    while_running: WhileRunning = False,
) -> None:
    """Print records as JSON, one a line, in the order of the log.

    The exit code is 1 if some bytes are not a record; standard error names them.
    """
    from cometmq.store.tools.inspection import BodyForm, DumpSelection, as_json
    from cometmq.store.tools.inspection import dump as dump_store

    gaps: list[Gap] = []

    def tell(gap: Gap) -> None:
        gaps.append(gap)
        size = plural(gap.stop - gap.start, "byte")
        print(f"no record at offset {gap.start}: {gap.problem} ({size})", file=sys.stderr)

    with refusing():
        wanted = DumpSelection(
            start, _FAR if stop is None else stop, topic, -1 if queue is None else queue, key,
            time_ms(since, 0), time_ms(until, _FAR),
        )  # fmt: skip
        records = dump_store(
            settings(directory, config), wanted, while_running=while_running,
            on_gap=tell,
        )  # fmt: skip
        for number, record in enumerate(records, 1):
            print(msgspec.json.encode(as_json(record, BodyForm(body.value))).decode())
            if number == limit:
                break
    if gaps:
        raise Exit(1)


#: Above every offset, and every time in ms.
_FAR = 1 << 62


def time_ms(text: str, otherwise: int) -> int:
    """Parse a time to ms since the epoch: digits, or an ISO time (UTC unless it has a zone).

    Returns ``otherwise`` for an empty text. Raises SettingsError for any other text.
    """
    if not text:
        return otherwise
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            text, "is not a time: use milliseconds, or a time such as 2026-11-21T12:00"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


@app.command("snapshot", "store snapshot /data/store /data/snapshots/before-upgrade")
def snapshot(
    directory: Directory,
    target: Annotated[Path, Argument(metavar="TARGET", help="Directory to create.")],
    config: ConfigFile = None,
    copy: Annotated[
        bool,
        Option(
            "--copy", help="Copy full log files instead of sharing them, for another file system."
        ),
    ] = False,
) -> None:
    """Create a second store directory that shares the full log files with the first.

    A CometMQ broker may be using the store.
    """
    from cometmq.store.tools.snapshot import snapshot as take

    with refusing(), Bar("snapshot") as bar:
        made = take(
            settings(directory, config), str(target), copy=copy,
            began=bar.began, progress=bar.advance,
        )  # fmt: skip
    print(
        f"snapshot of a {'running' if made.running else 'stopped'} store at {made.path}: log "
        f"{made.log_start} to {made.log_end}, {plural(made.linked_bytes, 'byte')} shared, "
        f"{made.copied_bytes:,} copied"
    )


@app.command("restore", "store restore /data/snapshots/before-upgrade /data/store-2")
def restore(
    source: Annotated[Path, Argument(metavar="SNAPSHOT", help="The snapshot.")],
    target: Annotated[Path, Argument(metavar="DIR", help="Directory of the new store.")],
    check: Annotated[bool, Option("--verify/--no-verify", help="Verify the copy.")] = True,
) -> None:
    """Copy a snapshot to a new store directory, sync the copy to the device, and verify it."""
    from cometmq.store.tools.snapshot import restore as put_back

    with refusing(), Bar("restoring") as bar:
        copied = put_back(str(source), str(target), began=bar.began, progress=bar.advance)
    print(f"restored {target} from {source}: {plural(copied, 'byte')} copied")
    if check:
        found = verify(target)
        print(found.shown)
        if found.problem:
            raise CometError(found.problem)


#: Exit code of ``repair`` if something is left to repair.
LEFT = 1


class DamageTreatment(StrEnum):
    """Treatment of damage in the log."""

    refuse = "refuse"
    skip = "skip"
    truncate = "truncate"


@app.command("repair", "store repair /data/store")
def repair(
    directory: Directory,
    config: ConfigFile = None,
    damage: Annotated[
        DamageTreatment,
        Option(
            help="What to do about damage in the log: nothing, leave out the damaged records, or "
            "end the log before them."
        ),
    ] = DamageTreatment.refuse,
    queues: Annotated[
        bool, Option("--queues", help="Rebuild all queues, also those without damage.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        Option(help="Rebuild the queues of this topic; may be given several times."),
    ] = None,
    index: Annotated[bool, Option("--index", help="Rebuild the index.")] = False,
    yes: Annotated[
        bool,
        Option("--yes", help="Repair; without this option, only print what would be done."),
    ] = False,
    processes: Annotated[
        int, Option(min=0, help="Number of processes that verify; 0: one per processor.")
    ] = 0,
) -> None:
    """Verify a stopped store, and rebuild the files that do not match the log.

    Replaced files are first moved to cometmq-set-aside in the store. Exit code 0: nothing to
    repair, or repaired. 1: something is left to repair. 2: the repair is not possible as requested.
    """
    from cometmq.store.tools.repair import repair as carry_out
    from cometmq.store.tools.repair import report_lines, verify_and_plan

    policy = DamagePolicy[damage.name.upper()]
    with refusing(), Bar("verifying") as bar:
        found, plan, sizes = verify_and_plan(
            settings(directory, config), processes=processes, topics=topic or (),
            all_queues=queues, index=index, began=bar.began, progress=bar.advance,
        )  # fmt: skip
    for finding in found.findings:
        if finding.severity.value == "damage":
            print(finding.line())
    for line in plan.lines(policy):
        print(line if yes else f"would {line}")
    if plan.is_empty:
        print("nothing that a repair can fix" if plan.others else "nothing to repair")
    elif yes:
        with refusing(), Bar("repairing") as bar:
            report = carry_out(
                replace(sizes, damage_policy=policy), plan, SystemClock(), progress=_Steps(bar).to
            )
        for line in report_lines(report):
            print(line)
    else:
        print("Nothing was changed: add --yes to repair.", file=sys.stderr)
    if plan.others or not (yes or plan.is_empty):
        raise Exit(LEFT)


class _Steps:
    """Turns the positions that a repair reports into steps of a progress bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._reached = 0

    def to(self, position: int, end: int) -> None:
        """Advance the bar to a position; ``end`` is the last one."""
        self._bar.began(end)
        self._bar.advance(position - self._reached)
        self._reached = position


#: Maximum number of missing keys that a line lists, by their numbers.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ErasedTopic:
    """The selected messages of a topic, and how many messages still contain the text of a key."""

    topic: str
    messages: int
    size_bytes: int
    first_stored_at: datetime | None
    last_stored_at: datetime | None
    mentions: int


@dataclass(frozen=True, slots=True)
class UnreadTombstones:
    """Selected messages that a group has not read yet: it will read messages without content."""

    topic: str
    group: str
    messages: int


@dataclass(frozen=True, slots=True)
class LeftPlace:
    """A file that was not changed although it may hold what was erased."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class ErasedStore:
    """Result of an erasure. ``root`` is the changed store, null if messages were only counted.

    ``keys`` has the number of messages of each key, in the order of the keys.
    """

    root: str | None
    messages: int
    mentions: int
    tombstones_before: int
    residue_bytes: int
    log_files: int
    queue_files: int
    index_files: int
    sealed_files: int
    keys: list[int]
    topics: list[ErasedTopic]
    unread: list[UnreadTombstones]
    left: list[LeftPlace]


Target = Annotated[
    Path | None, Option("--to", metavar="TARGET", help="Erase in a copy: the directory to create.")
]
InPlace = Annotated[bool, Option("--in-place", help="Erase in the directory itself.")]


@app.command(
    "redact",
    "store redact /data/store --keys-file erase.txt",
    "store redact /data/store --keys-file erase.txt --to /data/store-redacted",
)
def redact(
    directory: Directory,
    config: ConfigFile = None,
    key: Annotated[list[str] | None, Option(help="A key or unique key.")] = None,
    keys_file: Annotated[
        Path | None,
        Option("--keys-file", metavar="FILE", help="File with a key in each line; - for input."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        Option(help="Only messages sent to this topic, with their retries and dead letters."),
    ] = None,
    mentions: Annotated[
        Literal["report", "erase", "ignore"],
        Option(help="What to do with other messages that contain the text of a key."),
    ] = "report",
    to: Target = None,
    in_place: InPlace = False,
) -> Result[ErasedStore]:
    """Erase the content of all messages of some keys; all offsets stay as they are.

    Without --to or --in-place, only count. Exit code 0: counted, or erased. 1: erased, but some
    place still contains the text of a key. 2: not done.
    """
    from cometmq.store.tools.erasure import redact as erase_keys
    from cometmq.store.tools.selection import Mentions

    keys = [*(key or ()), *_keys_in(keys_file)]
    if not keys:
        raise Refused("no key is given: use --key or --keys-file")
    with refusing(), Bar("erasing") as bar:
        done = erase_keys(
            settings(directory, config), keys, SystemClock(), _way(to, in_place, bar),
            topics=topic or (), mentions=Mentions(mentions),
        )  # fmt: skip
    return _erased(done, directory)


@app.command("compact", "store compact /data/store prices --to /data/store-compacted")
def compact(
    directory: Directory,
    topic: Annotated[str, Argument(metavar="TOPIC", help="The topic.")],
    config: ConfigFile = None,
    to: Target = None,
    in_place: InPlace = False,
) -> Result[ErasedStore]:
    """Erase the content of all messages that a later one with the same keys replaces.

    All offsets stay as they are. Without --to or --in-place, only count.
    """
    from cometmq.store.tools.erasure import compact as erase_replaced

    with refusing(), Bar("erasing") as bar:
        done = erase_replaced(
            settings(directory, config), topic, SystemClock(), _way(to, in_place, bar)
        )
    return _erased(done, directory)


def _keys_in(path: Path | None) -> list[str]:
    from cometmq.message.tombstone import keys_in

    if path is None:
        return []
    with refusing():
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    return keys_in(text)


def _way(to: Path | None, in_place: bool, bar: Bar) -> Way:
    from cometmq.store.tools import erasure

    if to is not None and in_place:
        raise Refused("give either --to or --in-place")
    return erasure.Way(str(to or ""), in_place, bar.began, bar.advance)


def _erased(done: Erasure, directory: Path) -> Result[ErasedStore]:
    item = ErasedStore(
        done.root or None, done.records, done.mentions, done.earlier, done.residue_bytes,
        done.log_files, done.queue_files, done.index_files, done.seals, [*done.counts],
        [
            ErasedTopic(
                each.topic, each.records, each.size_bytes, when(each.first_ms), when(each.last_ms),
                each.mentions,
            )
            for each in done.topics
        ],
        [UnreadTombstones(*each) for each in done.unread],
        [LeftPlace(*each) for each in done.left],
    )  # fmt: skip
    is_left = bool(done.root and (item.mentions or item.left))
    problem = "Not everything is erased: see the lines above." if is_left else ""
    return Result([item], shown="\n".join(_erasure_lines(item, directory)), problem=problem)


def _erasure_lines(item: ErasedStore, directory: Path) -> Iterator[str]:
    """Yield lines for a person. They do not show keys, which may be personal data."""
    yield from map(_topic_line, item.topics)
    if item.keys:
        missing = [str(number) for number, count in enumerate(item.keys, 1) if not count]
        keys = plural(len(item.keys), "key was", "keys were")
        yield f"{len(item.keys) - len(missing)} of {keys} found" + (
            f"; none of these numbers: {', '.join(missing[:_SHOWN])}" if missing else ""
        )
    for group in item.unread:
        yield (
            f"group {group.group} has not read {group.messages} of them in {group.topic}: it reads "
            "messages without content"
        )
    if item.tombstones_before:
        before = plural(item.tombstones_before, "message was", "messages were")
        yield f"{before} erased by earlier runs"
    if item.residue_bytes:
        residue = plural(item.residue_bytes, "byte")
        yield f"behind the last records of log files: {residue} of no record"
    for place in item.left:
        yield f"left: {place.path}: {place.problem}"
    yield from _end_lines(item, directory)


def _topic_line(each: ErasedTopic) -> str:
    line = f"{each.topic}: {plural(each.messages, 'message')}, {plural(each.size_bytes, 'byte')}"
    if each.first_stored_at and each.last_stored_at:
        line += f", stored from {each.first_stored_at:%F %T} to {each.last_stored_at:%F %T} UTC"
    if each.mentions:
        mentions = plural(
            each.mentions, "message that stays contains", "messages that stay contain"
        )
        line += f"; {mentions} the text of a key"
    return line


def _end_lines(item: ErasedStore, directory: Path) -> Iterator[str]:
    if item.root is None:
        messages, files = plural(item.messages, "message"), plural(item.log_files, "log file")
        yield f"would erase {messages} and change {files}"
        yield "Nothing was changed: erase with --to TARGET or --in-place."
        return
    yield (
        f"erased {plural(item.messages, 'message')} in {item.root}: changed "
        f"{plural(item.log_files, 'log file')}, {plural(item.queue_files, 'queue file')} and "
        f"{plural(item.index_files, 'index file')}, sealed {plural(item.sealed_files, 'log file')}"
    )
    if item.root != str(directory):
        yield f"left: {directory}: the original store is unchanged"
    yield "Not examined: slaves, snapshots, backups and archives of this store."
