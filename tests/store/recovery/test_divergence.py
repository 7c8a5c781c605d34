"""Cutting the end off a log: it is set aside, it is gone, and no crash brings it back."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import StoreFull, StoreLocked
from cometmq.message.record import BLANK_BYTES, Record
from cometmq.store.files import Buffer, Files, PosixFiles
from cometmq.store.messagestore import MessageStore
from cometmq.store.recovery.divergence import Truncation, record_end_before, truncate_diverged_log
from tests.store.faults import FailingFiles, LossyFiles
from tests.store.stores import (
    OtherBoot,
    assert_consistent,
    config,
    copied,
    fill,
    log_of,
    opened,
    put,
    run_round,
)

REASON = "the logs differ"


def cut(root: Path, offset: int, files: Files | None = None) -> Truncation:
    return truncate_diverged_log(
        config(root), VirtualClock(), files or PosixFiles(), offset, REASON
    )


def filled(root: Path, count: int = 300) -> list[Record]:
    """A closed store of several files; its records."""
    store = opened(root)
    fill(store, count)
    run_round(store, thorough=True)
    records = log_of(store)
    assert len(store.log.segments.files) > 2
    store.close()
    return records


def places(store: MessageStore) -> list[int]:
    return [record.physical_offset for record in assert_consistent(store)]


@pytest.mark.parametrize("inside", [0, 1, 90])
def test_a_log_ends_before_the_record_in_which_it_is_cut(tmp_path: Path, inside: int) -> None:
    root = tmp_path / "s"
    records = filled(root)
    first = records[120]
    end = records[-1].physical_offset + records[-1].size_bytes
    made = cut(root, first.physical_offset + inside)
    assert (made.offset, made.end, made.records) == (first.physical_offset, end, 180)
    store = opened(root)
    assert places(store) == [record.physical_offset for record in records[:120]]
    assert store.written_offset == store.durable_offset == first.physical_offset
    assert store.report is not None
    assert store.report.shrunk
    fill(store, 60, first=9_000)
    store.close()
    # Neither a crash of the machine nor one of the process finds a byte of it.
    again = opened(copied(root, "power"), files=OtherBoot())
    bodies = [record.body[:6] for record in assert_consistent(again)]
    assert bodies == [b"%06d" % n for n in [*range(120), *range(9_000, 9_060)]]
    again.close()


def test_what_was_cut_is_kept_as_it_stood(tmp_path: Path) -> None:
    root = tmp_path / "s"
    records = filled(root)
    before = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    made = cut(root, records[120].physical_offset)
    kept = sorted(map(Path, made.kept))
    assert [path.parent for path in kept] == [root / "cometmq-set-aside"] * len(kept)
    first, *whole = kept
    base = made.offset // 16_384 * 16_384
    tail = before[f"{base:020d}"][made.offset - base :]
    assert first.read_bytes() == tail.rstrip(b"\0")[: len(first.read_bytes())]
    assert first.name.endswith(f"{made.offset:020d}")
    for path in whole:
        assert path.read_bytes() == before[path.name.split("-")[1]]
    assert len(whole) + 1 + base // 16_384 == len([raw for raw in before.values() if any(raw)])


def test_a_cut_at_the_end_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "s"
    records = filled(root)
    end = records[-1].physical_offset + records[-1].size_bytes
    assert cut(root, end) == Truncation(end, end, 0, ())
    assert cut(root, end + 100_000) == Truncation(end, end, 0, ())
    store = opened(root)
    assert len(places(store)) == 300
    store.close()


def test_the_whole_log_can_be_cut(tmp_path: Path) -> None:
    root = tmp_path / "s"
    filled(root)
    assert cut(root, 0).records == 300
    store = opened(root)
    assert places(store) == []
    fill(store, 5)
    assert len(places(store)) == 5
    store.close()


def test_a_store_in_use_is_not_cut(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 5)
    with pytest.raises(StoreLocked):
        cut(tmp_path, 0)
    store.close()


def test_without_room_to_set_it_aside_nothing_is_cut(tmp_path: Path) -> None:
    root = tmp_path / "s"
    records = filled(root)

    class Full(FailingFiles):
        def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
            if len(data) > 5_000 and any(data):
                self.failing["pwrite"] = 28
            super().pwrite(handle, data, offset)

    with pytest.raises(StoreFull):
        cut(root, records[100].physical_offset, Full())
    store = opened(root)
    assert len(places(store)) == 300
    store.close()


def test_borders_of_records_and_files(tmp_path: Path) -> None:
    store = opened(tmp_path)
    records = [put_one(store, 3_000) for _ in range(12)]
    segments = store.log.segments
    roll = next(at for at, size in records if at % 16_384 + size > 16_384 - BLANK_BYTES - 3_200)
    assert record_end_before(segments, roll + 5) == roll
    last = [(at, size) for at, size in records if at < 16_384][-1]
    # Within the blank, and where it ends.
    assert record_end_before(segments, sum(last) + 4) == sum(last)
    assert record_end_before(segments, 16_384) == 16_384
    assert record_end_before(segments, 16_384 + 1) == 16_384
    assert record_end_before(segments, 0) == 0
    store.close()


def put_one(store: MessageStore, size_bytes: int) -> tuple[int, int]:
    before = store.written_offset
    put(store, "t", 0, bytes(size_bytes))
    store.commit()
    record = next(r for r in log_of(store) if r.physical_offset >= before)
    return record.physical_offset, record.size_bytes


class Dying(LossyFiles):
    """A machine that loses power at one of the changes."""

    def __init__(self, left: int) -> None:
        super().__init__("boot 1")
        self.left = left

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        self._change()
        super().pwrite(handle, data, offset)

    def replace(self, source: str, target: str) -> None:
        self.rename(source, target)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)
        # One that came through did so for both names.
        self._old_names.pop(target, None)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)

    def datasync(self, handle: int) -> None:
        self._change()
        super().datasync(handle)

    def sync_directory(self, path: str) -> None:
        self._change()
        super().sync_directory(path)


class PowerCut(Exception):
    pass


def test_a_crash_at_any_step_loses_nothing_and_the_next_cut_ends_it(tmp_path: Path) -> None:
    chance = random.Random(7)
    origin = tmp_path / "origin"
    records = filled(origin, 160)
    at = records[50].physical_offset
    bodies = [record.body for record in records]
    for steps in range(1_000):
        root = copied(origin, f"s{steps}")
        files = Dying(steps)
        try:
            cut(root, at, files)
        except PowerCut:
            done = False
        else:
            done = True
        target = tmp_path / f"cut{steps}"
        files.crash(root, target, chance)
        store = opened(target, files=OtherBoot())
        left = assert_consistent(store)
        found = [record.body for record in left]
        assert found == bodies[: len(found)]
        assert len(found) >= 50
        store.close()
        if done:
            assert len(found) == 50
            return
        # What is not in the log any more is aside.
        aside = b"".join(path.read_bytes() for path in (target / "cometmq-set-aside").glob("*"))
        assert all(body in aside for body in bodies[len(found) :])
        assert cut(target, at).offset == at
        store = opened(target, files=OtherBoot())
        assert len(assert_consistent(store)) == 50
        store.close()
    raise AssertionError("it never ends")


def test_seals_of_what_is_cut_go(tmp_path: Path) -> None:
    root = tmp_path / "s"
    records = filled(root)
    (root / "cometmq-seals").mkdir(exist_ok=True)
    for base in range(0, 3 * 16_384, 16_384):
        (root / "cometmq-seals" / f"{base:020d}").write_bytes(b"x")
    inside: Callable[[Record], bool] = lambda r: 16_384 < r.physical_offset < 30_000  # noqa: E731
    cut(root, next(filter(inside, records)).physical_offset)
    assert [path.name for path in (root / "cometmq-seals").iterdir()] == [f"{0:020d}"]


class LogOnOtherDevice(PosixFiles):
    """The log has a device of its own, whose files cannot be renamed to another one."""

    def rename(self, source: str, target: str) -> None:
        if ("commitlog" in source) != ("commitlog" in target):
            raise OSError(errno.EXDEV, "Invalid cross-device link", source)
        super().rename(source, target)


def test_a_log_on_a_device_of_its_own_can_be_cut(tmp_path: Path) -> None:
    root = tmp_path / "s"
    records = filled(root)
    before = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    made = cut(root, records[5].physical_offset, LogOnOtherDevice())
    whole = [Path(path) for path in made.kept if path.endswith("-whole")]
    assert len(whole) >= 2
    for path in whole:
        assert path.read_bytes() == before[path.name.split("-")[1]]
    store = opened(root, files=LogOnOtherDevice())
    assert places(store) == [record.physical_offset for record in records[:5]]
    store.close()
