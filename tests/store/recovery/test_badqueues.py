"""Queues that a start cannot trust, and what is done with them."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import PosixFiles
from cometmq.store.recovery import filechecks
from tests.store.recovery.test_rebuild import (
    PER_FILE,
    closed,
    names_aside,
    queue_file,
    remade,
    spoil,
)
from tests.store.stores import assert_consistent, log_of, opened, put


def test_one_bad_queue_is_made_again_from_the_log(tmp_path: Path) -> None:
    root = closed(tmp_path)
    bad, good = queue_file(root, 1), queue_file(root, 0)
    bad.write_bytes(b"garbage")
    before = good.stat().st_ino
    store = opened(root)
    assert remade(store) == [("t", 1)]
    assert len(assert_consistent(store)) == 200
    assert [name for name in names_aside(root) if name.startswith("consumequeue-t-1-")] == [
        f"consumequeue-t-1-{bad.name}", f"consumequeue-t-1-{queue_file(root, 1, 1).name}"
    ]  # fmt: skip
    assert good.stat().st_ino == before
    store.close()
    again = opened(root)
    assert remade(again) == []
    assert again.report is not None
    assert again.report.records == 0
    again.close()


def test_a_bad_later_file_costs_only_what_follows_it(tmp_path: Path) -> None:
    root = closed(tmp_path)
    queue_file(root, 1, 1).write_bytes(b"garbage")
    store = opened(root)
    assert store.report is not None
    records = [record for record in log_of(store) if record.queue_id == 1]
    assert store.report.start == records[PER_FILE - 1].physical_offset + (
        records[PER_FILE - 1].size_bytes
    )
    assert len(assert_consistent(store)) == 200
    store.close()


@pytest.mark.parametrize("entry", [0, 1, 20, 39, 40, 55, 66])
def test_an_entry_that_would_end_its_queue_early_does_not(tmp_path: Path, entry: int) -> None:
    """The search for the end must not be misled, or offsets would be given twice."""
    root = closed(tmp_path)
    spoil(queue_file(root, 1, entry // PER_FILE), entry % PER_FILE * 20 + 8, b"\xff")
    store = opened(root)
    assert store.queue("t", 1).next_offset == 67
    if remade(store):
        assert_consistent(store)
    store.close()


def test_all_files_of_another_size_are_a_wrong_setting(tmp_path: Path) -> None:
    root = closed(tmp_path)
    with pytest.raises(StoreCorrupt, match="the files of all queues have another size"):
        opened(root, mapped_file_size_consume_queue=20 * 50)
    store = opened(root)
    assert remade(store) == []
    store.close()


def test_offsets_go_on_where_nothing_of_a_queue_is_left(tmp_path: Path) -> None:
    root = closed(tmp_path, 400)
    for path in sorted((root / "commitlog").iterdir())[:3]:
        path.unlink()
    store = opened(root)
    first = {record.queue_id: record.queue_offset for record in reversed(log_of(store))}
    put(store, "t", 9, b"x")
    store.commit()
    store.close()
    end = first[0]
    shutil.rmtree(root / "consumequeue" / "t" / "0")
    again = opened(root)
    assert again.queue("t", 0).min_offset == end
    assert_consistent(again)
    again.close()


def test_with_many_queues_each_is_looked_at_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filechecks, "CHECKED_QUEUES", 2)
    root = closed(tmp_path)
    spoil(queue_file(root, 1, 1), 26 * 20, b"\xff")
    store = opened(root)
    assert store.queue("t", 0).next_offset == 67
    with pytest.raises(StoreCorrupt, match=r"cometmq store repair .* --yes") as caught:
        store.queue("t", 1)
    assert caught.value.path == str(queue_file(root, 1).parent)
    store.close()


def test_directories_that_are_no_queues_change_nothing(tmp_path: Path) -> None:
    """Bytes that are no text, numbers that no queue has, and names that are another's number."""
    root = closed(tmp_path)
    top = root / "consumequeue"
    for name in ("99999999999999999999", "2147483648", "007", "²", "x"):
        (top / "t" / name).mkdir()
    (top / ("x" * 200) / "0").mkdir(parents=True)
    os.makedirs(os.path.join(os.fsencode(top), b"\xff\xfe", b"0"))
    store = opened(root)
    assert store.topics() == {"t": [0, 1, 2]}
    assert remade(store) == []
    assert store.report is not None
    assert (store.report.reason, store.report.records) == ("clean stop", 0)
    assert len(assert_consistent(store)) == 200
    store.close()


class OwnFileSystem(PosixFiles):
    """Only root may look into ``lost+found``."""

    def names(self, path: str) -> list[str]:
        if os.path.basename(path) == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().names(path)


@pytest.mark.parametrize("with_units", [False, True])
def test_queues_on_a_file_system_of_their_own(
    tmp_path: Path, with_units: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root = closed(tmp_path)
    for name in ("consumequeue", "consumequeue_ext"):
        (root / name / "lost+found").mkdir(parents=True)
    store = opened(root, files=OwnFileSystem(), enable_consume_queue_ext=with_units)
    assert store.topics() == {"t": [0, 1, 2]}
    assert "queue_directory_ignored" not in caplog.text
    store.close()
