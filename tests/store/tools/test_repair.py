"""What verifying finds is made again from the log, or taken out of it; then all fits together."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import Record
from cometmq.store.checkpoint import read_positions
from cometmq.store.config import DamagePolicy, StoreConfig
from cometmq.store.files import PosixFiles, ReadOnlyFiles
from cometmq.store.log.scan import Scan
from cometmq.store.log.segments import Segments
from cometmq.store.parts import RecoveryReport
from cometmq.store.tools.findings import Finding, Severity
from cometmq.store.tools.repair import RepairPlan, plan_repair, repair, sizes_of
from cometmq.store.tools.verify import Verified
from tests.golden import library
from tests.store.sealed import FILE_BYTES
from tests.store.stores import assert_consistent, opened
from tests.store.tools.verifying import damage, flip_byte, verified, written

ALL = frozenset({("t", 0), ("t", 1), ("t", 2)})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return written(tmp_path / "store", sealed=False)


def plan(root: Path, found: Verified | None = None, **wanted: object) -> RepairPlan:
    return plan_repair(found or verified(root), ReadOnlyFiles(), **wanted)  # type: ignore[arg-type]


def log_of(root: Path) -> list[Record]:
    """Every record, fillers too."""
    segments = Segments(PosixFiles(), str(root / "commitlog"), FILE_BYTES)
    segments.load()
    found = list(Scan(segments, 0))
    segments.close()
    return found


def repaired(
    root: Path, work: RepairPlan, policy: DamagePolicy = DamagePolicy.REFUSE
) -> RecoveryReport:
    """Carry a plan out with the default settings, as the command does without a file."""
    settings = replace(StoreConfig(str(root)), damage_policy=policy)
    sizes = sizes_of(settings, verified(root).directory, ReadOnlyFiles())
    return repair(sizes, work, VirtualClock())


def test_a_sound_store_needs_nothing(root: Path) -> None:
    work = plan(root)
    assert work.is_empty
    assert work.lines(DamagePolicy.REFUSE) == []


@pytest.mark.parametrize("at", [2, 7, 10, 15])
def test_a_queue_with_a_wrong_entry_is_made_again(root: Path, at: int) -> None:
    flip_byte(root / "consumequeue" / "t" / "1" / f"{0:020d}", 20 * 77 + at)
    work = plan(root)
    assert work == RepairPlan(frozenset({("t", 1)}), False, (), ())
    assert work.lines(DamagePolicy.REFUSE) == ["make queue 1 of t again"]
    report = repaired(root, work)
    assert report.remade == (("t", 1),)
    assert any("consumequeue-t-1-" in path for path in report.kept)
    assert verified(root).is_sound


def test_an_index_with_a_wrong_entry_is_made_again(root: Path) -> None:
    path = sorted((root / "index").iterdir())[1]
    flip_byte(path, 40 + 4 * 500 + 20 * 9 + 1)
    work = plan(root)
    assert work == RepairPlan(frozenset(), True, (), ())
    assert work.lines(DamagePolicy.REFUSE) == ["make the index again"]
    repaired(root, work)
    assert verified(root).is_sound


def test_what_is_asked_for_is_made_again(root: Path) -> None:
    assert plan(root, all_queues=True, index=True) == RepairPlan(ALL, True, (), ())
    assert plan(root, topics=["t", "other"]).queues == ALL
    assert plan(root, topics=["other"]).is_empty
    report = repaired(root, plan(root, all_queues=True, index=True))
    assert set(report.remade) == ALL
    assert verified(root).is_sound


def test_damage_in_the_log_is_refused_skipped_or_ends_it(root: Path) -> None:
    record = log_of(root)[700]
    log = root / "commitlog" / f"{0:020d}"
    flip_byte(log, record.physical_offset + 90)
    work = plan(root)
    (finding,) = work.lost
    assert finding.offset == record.physical_offset
    (line,) = work.lines(DamagePolicy.SKIP)
    assert line == f"omit what is damaged in {log} at offset {record.physical_offset}"
    assert "choose --damage skip or truncate" in work.lines(DamagePolicy.REFUSE)[0]
    with pytest.raises(
        StoreCorrupt, match=r"cometmq store repair .* --damage skip --yes"
    ) as caught:
        repaired(root, work)
    assert caught.value.offset == record.physical_offset
    report = repaired(root, work, DamagePolicy.SKIP)
    assert [each.offset for each in report.damages] == [record.physical_offset]
    assert verified(root).is_sound
    assert len(log_of(root)) == 2_500


def test_truncating_leaves_a_sound_store(root: Path) -> None:
    record = log_of(root)[700]
    flip_byte(root / "commitlog" / f"{0:020d}", record.physical_offset + 90)
    report = repaired(root, plan(root), DamagePolicy.TRUNCATE)
    assert report.cut == record.physical_offset
    assert verified(root).is_sound
    assert len(log_of(root)) == 700


def test_the_next_start_is_told_that_queues_may_have_shrunk(root: Path) -> None:
    """So that it brings the offsets of consumers into bounds."""
    record = log_of(root)[700]
    flip_byte(root / "commitlog" / f"{0:020d}", record.physical_offset + 90)
    repaired(root, plan(root), DamagePolicy.TRUNCATE)
    positions = read_positions(PosixFiles(), str(root))
    assert positions is not None
    assert (positions.clean, positions.shrunk) == (True, True)
    sizes = sizes_of(StoreConfig(str(root)), verified(root).directory, ReadOnlyFiles())
    for shrunk in (True, False):
        store = opened(
            root,
            mapped_file_size_commit_log=sizes.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=sizes.mapped_file_size_consume_queue,
            max_hash_slot_num=sizes.max_hash_slot_num,
            max_index_num=sizes.max_index_num,
        )
        assert store.report is not None
        assert store.report.shrunk is shrunk
        assert_consistent(store)
        store.close()


def test_sizes_come_from_the_files(root: Path) -> None:
    found = sizes_of(StoreConfig(str(root)), verified(root).directory, ReadOnlyFiles())
    assert (found.mapped_file_size_consume_queue, found.max_hash_slot_num, found.max_index_num) == (
        20 * 500, 500, 1_500,
    )  # fmt: skip
    assert found.mapped_file_size_commit_log == (root / "commitlog" / f"{0:020d}").stat().st_size


def test_what_no_repair_mends_is_told_apart(root: Path) -> None:
    found = verified(root)
    table = Finding(Severity.DAMAGE, "table", str(root / "config" / "topics.json"), -1, "bad")
    entry = Finding(Severity.DAMAGE, "queue-entry-wrong", str(root / "commitlog" / "0"), -1, "more")
    note = Finding(Severity.NOTE, "gap", str(root), -1, "fine")
    work = plan(root, replace(found, findings=[table, note]))
    assert (work.others, work.is_empty) == ((table,), True)
    # Told of a log file: nobody knows of which queue it is.
    assert plan(root, replace(found, findings=[entry])).queues == ALL


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_java_broker_s_store(tmp_path: Path, name: str) -> None:
    root = library.unpack_store(name, tmp_path)
    queue = next(path for path in (root / "consumequeue").rglob("0" * 20) if "golden" in str(path))
    flip_byte(queue, 3)
    work = plan(root)
    assert work.queues == frozenset({("golden", int(queue.parent.name))})
    repaired(root, work)
    assert damage(verified(root)) == []


def test_progress_is_told(root: Path) -> None:
    told: list[tuple[int, int]] = []
    sizes = sizes_of(StoreConfig(str(root)), verified(root).directory, ReadOnlyFiles())
    repair(
        sizes, plan(root, index=True), VirtualClock(),
        progress=lambda position, end: told.append((position, end)),
    )  # fmt: skip
    assert len(told) > 1
    assert all(0 <= position <= end for position, end in told)


@pytest.mark.parametrize("policy", [DamagePolicy.SKIP, DamagePolicy.TRUNCATE])
def test_a_log_file_that_lost_its_end_is_repaired(root: Path, policy: DamagePolicy) -> None:
    os.truncate(root / "commitlog" / f"{FILE_BYTES:020d}", FILE_BYTES // 2)
    work = plan(root)
    assert work.lost
    repaired(root, work, policy)
    assert verified(root).is_sound
