"""``cometmq store ...``: inspects, verifies and repairs a store directory of CometMQ or of a Java
broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed

from cometmq.cli import render
from cometmq.cli.connect import AsJson
from cometmq.core.clock import SystemClock
from cometmq.core.errors import SettingsError, StoreError
from cometmq.core.settings import build, parse_properties
from cometmq.store.config import DamagePolicy, StoreConfig

if TYPE_CHECKING:
    from cometmq.store.tools.findings import Finding
    from cometmq.store.tools.inspection import StoreInfo
    from cometmq.store.tools.logfile import Gap
    from cometmq.store.tools.verify import Verified

app = typer.Typer(
    help="Store directories: info, verify, dump, snapshot, restore, repair.", no_args_is_help=True
)

NOT_DONE = 2

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", show_default=False, help="The store directory.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", metavar="FILE", help="The broker's property file, if there is one."
    ),
]
WhileRunning = Annotated[
    bool, typer.Option("--while-running", help="Read the store although a broker is using it.")
]


class Body(StrEnum):
    """Output form of message bodies."""

    auto = "auto"
    text = "text"
    base64 = "base64"
    none = "none"


@app.callback()
def _stores() -> None:
    """Commands on a store directory; most need a store that no broker is using."""


def settings(directory: Path, config: Path | None) -> StoreConfig:
    """Return the settings of the store in ``directory``: those of the file, with that directory.

    Raises SettingsError for an invalid line, OSError for a file that cannot be read.
    """
    values = {} if config is None else parse_properties(config.read_text(encoding="utf-8"))
    return replace(build(StoreConfig, values)[0], store_path_root_dir=str(directory))


@contextmanager
def refusing() -> Iterator[None]:
    """End with one line and exit code 2 if a command cannot be done as requested."""
    try:
        yield
    except (StoreError, SettingsError) as error:
        typer.echo(f"cometmq store: {error}", err=True)
        raise typer.Exit(NOT_DONE) from error
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        typer.echo(f"cometmq store: {named}{error.strerror or error}", err=True)
        raise typer.Exit(NOT_DONE) from error


class Bar:
    """Progress bar for bytes on standard error; prints nothing if that is not a terminal."""

    def __init__(self, what: str) -> None:
        console = render.console(stderr=True)
        columns = (
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
            Speed(), TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def began(self, total_bytes: int) -> None:
        """Set the total number of bytes."""
        self._progress.update(self._task, total=total_bytes)

    def advance(self, size_bytes: int) -> None:
        """Add bytes that are done."""
        self._progress.advance(self._task, size_bytes)


@app.command()
def info(
    directory: Directory,
    config: ConfigFile = None,
    while_running: WhileRunning = False,
    as_json: AsJson = False,
) -> None:
    """Print what a store holds: files, ranges, topics, ages, and the last writer."""
    from cometmq.store.tools.inspection import inspect_store

    with refusing():
        found = inspect_store(settings(directory, config), while_running=while_running)
    if as_json:
        render.print_json([found])
        return
    _show_info(found)


def _show_info(found: StoreInfo) -> None:
    facts = {
        "root": found.root,
        "log directory": found.log_directory,
        "file system": found.file_system or "unknown",
        "state": found.state,
        "last written by": found.last_writer,
        "log": f"{found.log_start} to {found.log_end}, files of {found.log_file_bytes} bytes",
        "queue files": f"{found.queue_file_bytes} bytes",
    }
    noted = found.positions
    if noted is not None:
        facts["checkpoint"] = (
            f"on the device up to {noted.durable}, queues and index up to {noted.written} "
            f"(on the device up to {noted.synced})"
        )
    for name, fact in facts.items():
        typer.echo(f"{name + ':':18}{fact}")
    now_ms = SystemClock().wall_ms()
    typer.echo("")
    render.print_table(
        ("log file", "used bytes", "records", "stored from", "to", "sealed"),
        [
            (
                row.file, row.used_bytes, row.records if row.records >= 0 else "?",
                moment(row.first_stored_ms), age(row.last_stored_ms, now_ms), row.seal,
            )
            for row in found.log
        ],
    )  # fmt: skip
    if found.topics:
        typer.echo("")
        rows = [(row.topic, row.queues, row.messages) for row in found.topics]
        render.print_table(("topic", "queues", "messages"), rows)
    if found.index:
        typer.echo("")
        render.print_table(
            ("index file", "entries", "stored from", "to"),
            [
                (
                    row.file,
                    row.entries,
                    moment(row.first_stored_ms),
                    age(row.last_stored_ms, now_ms),
                )
                for row in found.index
            ],
        )
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)


def moment(time_ms: int) -> str:
    """Format a time as text, in UTC; empty for an unknown time."""
    if time_ms <= 0:
        return ""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d %H:%MZ")


def age(time_ms: int, now_ms: int) -> str:
    """Format the age of a time in a suitable unit; empty for an unknown time."""
    if time_ms <= 0:
        return ""
    seconds = max(0, now_ms - time_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


@app.command()
def verify(
    directory: Directory,
    config: ConfigFile = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Number of processes; 0: one per processor.")
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Also decode every record of sealed files.")
    ] = False,
    as_json: AsJson = False,
) -> None:
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
    _show_verified(found, (clock.monotonic_ms() - begun_ms) / 1000, as_json=as_json)
    if not found.is_sound:
        raise typer.Exit(1)


def _show_verified(found: Verified, seconds: float, *, as_json: bool) -> None:
    summary = {
        "kind": "summary",
        "sound": found.is_sound,
        "log_bytes": found.log_bytes,
        "log_files": len(found.directory.log_files),
        "sealed_files": found.sealed_files,
        "records": found.records,
        "queues": found.queues,
        "queue_entries": found.entries,
        "index_entries": found.index_entries,
        "seconds": round(seconds, 3),
    }
    if as_json:
        render.print_json([*found.findings, summary])
        return
    for finding in found.findings:
        typer.echo(finding.line())
    verdict = "sound" if found.is_sound else "DAMAGED"
    typer.echo(
        f"{found.directory.root} is {verdict}: {found.records} records in "
        f"{len(found.directory.log_files)} log files ({found.sealed_files} sealed), "
        f"{found.entries} entries of {found.queues} queues, {found.index_entries} index entries, "
        f"in {seconds:.1f} s"
    )
    _hint(found.findings)


def _hint(findings: list[Finding]) -> None:
    kinds = {finding.kind for finding in findings if finding.severity.value == "damage"}
    if kinds & {"block", "body", "gap", "log-file-missing", "log-file-size", "log-short"}:
        typer.echo(
            "The log is damaged: restore the file from a snapshot or copy if there is one, "
            "otherwise see 'cometmq store repair --help'.",
            err=True,
        )
    elif kinds:
        typer.echo(
            "The log is intact, and all other files can be rebuilt from it: see "
            "'cometmq store repair --help'.",
            err=True,
        )


@app.command()
def dump(
    directory: Directory,
    config: ConfigFile = None,
    start: Annotated[int, typer.Option("--from", min=0, help="First physical offset.")] = 0,
    stop: Annotated[
        int | None, typer.Option("--to", min=0, help="End at this physical offset.")
    ] = None,
    topic: Annotated[str, typer.Option(help="Only records of this topic.")] = "",
    queue: Annotated[
        int | None, typer.Option(min=0, help="Only records of queues with this number.")
    ] = None,
    key: Annotated[str, typer.Option(help="Only records with this key or unique key.")] = "",
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Stored at or after this time: ms, or 2026-11-21T12:00."),
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Stored before this time.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Largest number of records.")] = None,
    body: Annotated[
        Body, typer.Option(help="Print bodies as text, as base64, or not at all.")
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
        typer.echo(
            f"no record at offset {gap.start}: {gap.problem} ({gap.stop - gap.start} bytes)",
            err=True,
        )

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
        raise typer.Exit(1)


_FAR = 1 << 62


def time_ms(text: str, otherwise: int) -> int:
    """Parse a time to ms: digits are ms, an ISO time is converted (local unless it has a zone).

    Raises SettingsError for anything else.
    """
    if not text:
        return otherwise
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise SettingsError(
            text, "is not a time: use milliseconds, or a time such as 2026-11-21T12:00"
        ) from None


@app.command()
def snapshot(
    directory: Directory,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", show_default=False, help="Directory to create.")
    ],
    config: ConfigFile = None,
    copy: Annotated[
        bool,
        typer.Option(
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
    typer.echo(
        f"snapshot of a {'running' if made.running else 'stopped'} store at {made.path}: log "
        f"{made.log_start} to {made.log_end}, {made.linked_bytes} bytes shared, "
        f"{made.copied_bytes} copied"
    )


@app.command()
def restore(
    source: Annotated[
        Path, typer.Argument(metavar="SNAPSHOT", show_default=False, help="The snapshot.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="DIR", show_default=False, help="Directory of the new store.")
    ],
    check: Annotated[bool, typer.Option("--verify/--no-verify", help="Verify the copy.")] = True,
) -> None:
    """Copy a snapshot to a new store directory, sync the copy to the device, and verify it."""
    from cometmq.store.tools.snapshot import restore as put_back

    with refusing(), Bar("restoring") as bar:
        copied = put_back(str(source), str(target), began=bar.began, progress=bar.advance)
    typer.echo(f"restored {target} from {source}: {copied} bytes copied")
    if check:
        verify(target)


LEFT = 1


class Choice(StrEnum):
    """Treatment of damage in the log."""

    refuse = "refuse"
    skip = "skip"
    truncate = "truncate"


@app.command()
def repair(
    directory: Directory,
    config: ConfigFile = None,
    damage: Annotated[
        Choice,
        typer.Option(
            help="What to do about damage in the log: nothing, leave out the damaged records, or "
            "end the log before them."
        ),
    ] = Choice.refuse,
    queues: Annotated[
        bool, typer.Option("--queues", help="Rebuild all queues, also those without damage.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Rebuild the queues of this topic; may be given several times."),
    ] = None,
    index: Annotated[bool, typer.Option("--index", help="Rebuild the index.")] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Repair; without this option, only print what would be done."),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=0, help="Number of processes that verify; 0: one per processor.")
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
            typer.echo(finding.line())
    for line in plan.lines(policy):
        typer.echo(line if yes else f"would {line}")
    if plan.is_empty:
        typer.echo("nothing that a repair can fix" if plan.others else "nothing to repair")
    elif yes:
        with refusing(), Bar("repairing") as bar:
            report = carry_out(
                replace(sizes, damage_policy=policy), plan, SystemClock(), progress=_Steps(bar).to
            )
        for line in report_lines(report):
            typer.echo(line)
    else:
        typer.echo("Nothing was changed: add --yes to repair.", err=True)
    if plan.others or not (yes or plan.is_empty):
        raise typer.Exit(LEFT)


class _Steps:
    """Translates positions to steps of a bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._reached = 0

    def to(self, position: int, end: int) -> None:
        """Advance the bar to a position; ``end`` is the last one."""
        self._bar.began(end)
        self._bar.advance(position - self._reached)
        self._reached = position
