"""What checks of single files mean for the store as a whole."""

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.store.checkpoint import Checkpoint, Positions
from cometmq.store.config import StoreConfig
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.log.checksums import BlockChecksums
from cometmq.store.tools.directory import FileInfo, QueueInfo, StoreDirectory
from cometmq.store.tools.findings import Findings
from cometmq.store.tools.logcheck import LogOutcome, StoreContents
from cometmq.store.tools.logfile import Gap
from cometmq.store.tools.queues import MissingEntries, MissingReason, QueueSpan
from cometmq.store.tools.verify import check_together

NOTED = Positions("boot", True, 150, 150, 1, Checkpoint(), 150)
WHOLE = LogOutcome(0, 5, 0, 100, True, [], False, [], [], 0, -1, 0)
LAST = replace(WHOLE, number=1, end=150, closed=False)


@pytest.fixture
def directory(tmp_path: Path) -> StoreDirectory:
    """Two log files of 100 bytes, stopped cleanly by a broker of ours."""
    (tmp_path / "checkpoint").write_bytes(bytes(4_096))
    log = tuple(FileInfo(base, f"log/{base:020d}", 100) for base in (0, 100))
    return StoreDirectory(str(tmp_path), ("log",), 0, False, Checkpoint(), NOTED, log, 100, 800, ())


def judged(
    directory: StoreDirectory, *outcomes: LogOutcome, spans: tuple[QueueSpan, ...] = ()
) -> list[tuple[str, str]]:
    queues = [QueueInfo("t", number, "q", (0,)) for number in range(len(spans))]
    findings = Findings()
    seals = BlockChecksums(ReadOnlyFiles(), directory.root)
    contents = StoreContents(directory, queues, [], (0, -1), (), seals)
    config = StoreConfig(store_path_root_dir=directory.root)
    check_together(config, ReadOnlyFiles(), contents, list(spans), list(outcomes), findings)
    return [(each.severity.value, each.kind) for each in findings.all()]


def crashed(directory: StoreDirectory, durable: int = 120) -> StoreDirectory:
    noted = Positions("boot", False, 140, 100, 1, Checkpoint(), durable)
    return replace(directory, crashed=True, positions=noted)


def java(directory: StoreDirectory) -> StoreDirectory:
    return replace(directory, positions=None)


def test_a_whole_log(directory: StoreDirectory) -> None:
    assert judged(directory, WHOLE, LAST) == []
    # A last file that was made ahead.
    empty = replace(LAST, records=0, end=100)
    assert judged(java(directory), replace(WHOLE, closed=False, end=70), empty) == []


def test_a_log_that_is_longer_or_shorter_than_noted(directory: StoreDirectory) -> None:
    assert judged(directory, WHOLE, replace(LAST, end=140)) == [("damage", "log-short")]
    assert judged(directory, WHOLE, replace(LAST, end=160)) == [("damage", "log-long")]
    note = ("note", "crashed")
    assert judged(crashed(directory), WHOLE, replace(LAST, end=130)) == [note]
    assert judged(crashed(directory), WHOLE, replace(LAST, end=110)) == [
        ("damage", "log-short"), note,
    ]  # fmt: skip


def gap(start: int, *, is_open: bool) -> list[Gap]:
    return [Gap(start, start + 5, "torn", is_open)]


def test_gaps(directory: StoreDirectory) -> None:
    inside = replace(LAST, gaps=gap(130, is_open=False))
    at_end = replace(LAST, end=130, gaps=gap(130, is_open=True))
    early = replace(LAST, end=110, gaps=gap(110, is_open=True))
    note = ("note", "crashed")
    assert ("damage", "gap") in judged(directory, WHOLE, inside)
    assert ("damage", "gap") in judged(directory, WHOLE, at_end)
    assert judged(java(directory), WHOLE, at_end) == [("note", "behind-end")]
    assert judged(java(directory), WHOLE, inside) == [("damage", "gap")]
    assert judged(crashed(directory), WHOLE, at_end) == [note, ("note", "torn-end")]
    assert judged(crashed(directory), WHOLE, inside) == [note, ("note", "torn-end")]
    assert ("damage", "gap") in judged(crashed(directory), WHOLE, early)
    broken = replace(WHOLE, end=60, gaps=gap(60, is_open=True))
    assert ("damage", "gap") in judged(crashed(directory), broken, LAST)
    assert judged(directory, replace(WHOLE, closed=False, end=60), LAST) == [("damage", "gap")]


def missing(reason: MissingReason, amount: int = 3, first: int = 5) -> LogOutcome:
    group = MissingEntries("t", 0, reason, amount, first, first + amount - 1, 40)
    return replace(WHOLE, missing=[group])


def topics(directory: StoreDirectory, text: str) -> None:
    config = Path(directory.root) / "config"
    config.mkdir()
    (config / "topics.json").write_text(text)


@pytest.mark.parametrize(
    ("reason", "span", "found"),
    [
        (MissingReason.NEWER, QueueSpan(0, 2), ("note", "deleted-topic")),
        (MissingReason.NO_QUEUE, None, ("note", "deleted-topic")),
        (MissingReason.NO_ENTRY, QueueSpan(0, 5), ("damage", "record-without-entry")),
        (MissingReason.NO_ENTRY, QueueSpan(0, 50), ("damage", "record-without-entry")),
        (MissingReason.OTHER, QueueSpan(0, 50), ("damage", "record-without-entry")),
    ],
)
def test_records_without_entry(
    directory: StoreDirectory, reason: MissingReason, span: QueueSpan | None, found: tuple[str, str]
) -> None:
    assert judged(directory, missing(reason), LAST, spans=(span,) if span else ()) == [found]


def test_a_crash_explains_entries_at_the_end_alone(directory: StoreDirectory) -> None:
    store = crashed(directory)
    behind = judged(store, missing(MissingReason.NO_ENTRY), LAST, spans=(QueueSpan(0, 5),))
    assert behind == [("note", "crashed"), ("note", "queue-behind")]
    inside = judged(store, missing(MissingReason.NO_ENTRY), LAST, spans=(QueueSpan(0, 50),))
    assert ("damage", "record-without-entry") in inside


def test_a_topic_that_is_known_has_queues(directory: StoreDirectory) -> None:
    topics(directory, '{"topicConfigTable":{"t":{"topicName":"t"}}}')
    assert judged(directory, missing(MissingReason.NO_QUEUE), LAST) == [
        ("damage", "record-without-entry")
    ]


def test_what_was_not_looked_at_is_taken_for_the_most(directory: StoreDirectory) -> None:
    groups = [
        MissingEntries("t", 0, MissingReason.NEWER, 200, 0, 9, 40),
        MissingEntries("t", 0, MissingReason.OTHER, 2, 3, 4, 50),
        MissingEntries("t", 0, MissingReason.UNKNOWN, 5_000, 0, 99, 60),
    ]
    findings = Findings()
    seals = BlockChecksums(ReadOnlyFiles(), directory.root)
    queues = [QueueInfo("t", 0, "q", (0,))]
    contents = StoreContents(directory, queues, [], (0, -1), (), seals)
    outcomes = [replace(WHOLE, missing=groups), replace(LAST, missing=groups[:1])]
    config = StoreConfig(store_path_root_dir=directory.root)
    check_together(config, ReadOnlyFiles(), contents, [QueueSpan(0, 50)], outcomes, findings)
    assert {each.kind: each.count for each in findings.all()} == {
        "deleted-topic": 5_400,
        "record-without-entry": 2,
    }
