"""``cometmq store repair``: says what it would do, does it with --yes, and then all is well."""

from pathlib import Path

import pytest

from cometmq.cli.main import main
from cometmq.store.files import PosixFiles
from cometmq.store.log.scan import Scan
from cometmq.store.log.segments import Segments
from tests.store.sealed import FILE_BYTES
from tests.store.tools.verifying import contents, flip_byte, written

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return written(tmp_path / "s", sealed=False)


def repair(store: Path, *options: str) -> int:
    return main(["store", "repair", str(store), "--processes", "1", *options])


def verify(store: Path) -> int:
    return main(["store", "verify", str(store), "--processes", "1"])


def test_a_sound_store(store: Path, capsys: Captured) -> None:
    assert repair(store, "--yes") == 0
    assert capsys.readouterr().out == "nothing to repair\n"


def test_queue_and_index(store: Path, capsys: Captured) -> None:
    flip_byte(store / "consumequeue" / "t" / "1" / f"{0:020d}", 20 * 77 + 2)
    flip_byte(sorted((store / "index").iterdir())[1], 40 + 4 * 500 + 20 * 9 + 1)
    before = contents(store)
    assert repair(store) == 1
    shown = capsys.readouterr()
    assert "damage: " in shown.out
    assert "would make queue 1 of t again\nwould make the index again\n" in shown.out
    assert "Nothing was changed: add --yes to repair." in shown.err
    assert contents(store) == before
    assert repair(store, "--yes") == 0
    shown = capsys.readouterr()
    assert "\nmake queue 1 of t again\nmake the index again\n" in shown.out
    assert "made queue 1 of t again" in shown.out
    assert shown.out.count("set aside: ") >= 2
    assert "repaired: 2,500 records read" in shown.out
    assert verify(store) == 0


def test_what_is_asked_for(store: Path, capsys: Captured) -> None:
    assert repair(store, "--queues", "--index") == 1
    assert capsys.readouterr().out.count("would make") == 4
    assert repair(store, "--topic", "t", "--topic", "u", "--yes") == 0
    assert capsys.readouterr().out.count("made queue") == 3
    assert verify(store) == 0


def test_damage_in_the_log(store: Path, capsys: Captured) -> None:
    segments = Segments(PosixFiles(), str(store / "commitlog"), FILE_BYTES)
    segments.load()
    record = list(Scan(segments, 0))[700]
    segments.close()
    flip_byte(store / "commitlog" / f"{0:020d}", record.physical_offset + 90)
    assert repair(store) == 1
    assert "choose --damage skip or truncate" in capsys.readouterr().out
    assert repair(store, "--yes") == 2
    assert f"at offset {record.physical_offset}: body CRC differs" in capsys.readouterr().err
    assert repair(store, "--damage", "skip") == 1
    assert "would omit what is damaged in" in capsys.readouterr().out
    assert repair(store, "--damage", "skip", "--yes") == 0
    shown = capsys.readouterr().out
    assert f"omitted {record.size_bytes} bytes of " in shown
    assert "consumerOffset.json" in shown
    assert verify(store) == 0


def test_truncating(store: Path, capsys: Captured) -> None:
    flip_byte(store / "commitlog" / f"{FILE_BYTES:020d}", 4)
    assert repair(store, "--damage", "truncate", "--yes") == 0
    assert f"the log ends at {FILE_BYTES}" in capsys.readouterr().out
    assert verify(store) == 0


def test_what_no_repair_mends(store: Path, capsys: Captured) -> None:
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text("{")
    assert repair(store, "--yes") == 1
    assert "nothing that a repair can fix" in capsys.readouterr().out


def test_it_cannot_be_done(tmp_path: Path, capsys: Captured) -> None:
    assert repair(tmp_path / "none") == 2
    assert "is not a store directory" in capsys.readouterr().err
