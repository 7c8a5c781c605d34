"""Checkpoint and positions files."""

import errno
from pathlib import Path

import pytest

from cometmq.store.checkpoint import (
    Checkpoint,
    Positions,
    abort_path,
    forget_positions,
    lock_path,
    read_checkpoint,
    read_positions,
    write_checkpoint,
    write_positions,
)
from cometmq.store.files import PosixFiles

FILES = PosixFiles()


def test_checkpoint_bytes(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert read_checkpoint(FILES, root) == Checkpoint(0, 0, 0)
    write_checkpoint(FILES, root, Checkpoint(1, 2, 3), durable=True)
    raw = (tmp_path / "checkpoint").read_bytes()
    assert len(raw) == 4096
    assert raw[:24].hex() == "000000000000000100000000000000020000000000000003"
    assert read_checkpoint(FILES, root) == (1, 2, 3)
    (tmp_path / "checkpoint").write_bytes(b"short")
    assert read_checkpoint(FILES, root) == Checkpoint()


@pytest.mark.parametrize("durable", [False, True])
def test_positions(tmp_path: Path, durable: bool) -> None:
    root = str(tmp_path)
    assert read_positions(FILES, root) is None
    positions = Positions("boot", True, 5, 4, 3, Checkpoint(0, 0, 0))
    write_positions(FILES, root, positions, durable=durable)
    assert read_positions(FILES, root) == positions
    write_checkpoint(FILES, root, Checkpoint(1, 0, 0), durable=False)
    assert read_positions(FILES, root) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b'{"boot_id":1}', b"\0" * 4096, b"\xff\xfe", b'{"boot_id":"\xff"}',
        b"[" * 100_000, b'{"written":' + b"9" * 400 + b"}", b" " * 3_000_000,
    ],
)  # fmt: skip
def test_broken_positions_are_none(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "cometmq-positions.json").write_bytes(raw)
    assert read_positions(FILES, str(tmp_path)) is None


def test_positions_with_a_flipped_bit_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A position that is off by a digit would begin in the middle of nowhere."""
    root = str(tmp_path)
    path = tmp_path / "cometmq-positions.json"
    write_positions(FILES, root, Positions("boot", True, 512, 4, 3, Checkpoint()), durable=True)
    good = path.read_bytes()
    for at in range(len(good)):
        for bit in range(8):
            raw = bytearray(good)
            raw[at] ^= 1 << bit
            path.write_bytes(raw)
            assert read_positions(FILES, root) is None
    assert "positions_ignored" in caplog.text
    path.write_bytes(good)
    assert read_positions(FILES, root) is not None


class Unreadable(PosixFiles):
    """A device that gives nothing."""

    def pread(self, handle: int, size_bytes: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


def test_what_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    root = str(tmp_path)
    write_checkpoint(FILES, root, Checkpoint(1, 2, 3), durable=False)
    write_positions(FILES, root, Positions("b", True, 5, 4, 3, Checkpoint(1, 2, 3)), durable=False)
    assert read_checkpoint(Unreadable(), root) == Checkpoint()
    assert read_positions(Unreadable(), root) is None


def test_places() -> None:
    assert (abort_path("/s"), lock_path("/s")) == ("/s/abort", "/s/lock")


def test_a_checkpoint_that_was_being_changed_is_no_other_broker_s(tmp_path: Path) -> None:
    """It is written after the positions, and a crash may come in between."""
    root = str(tmp_path)
    old, new = Checkpoint(1, 2, 3), Checkpoint(4, 5, 6)
    write_positions(FILES, root, Positions("b", False, 5, 4, 3, new, previous=old), durable=True)
    for times in (old, new):
        write_checkpoint(FILES, root, times, durable=False)
        assert read_positions(FILES, root) is not None
    write_checkpoint(FILES, root, Checkpoint(4, 5, 7), durable=False)
    assert read_positions(FILES, root) is None


def test_the_newer_of_both_notes_counts(tmp_path: Path) -> None:
    root = str(tmp_path)
    progress = tmp_path / "cometmq-progress.json"

    def note(number: int, *, durable: bool) -> None:
        positions = Positions("b", False, number, 4, 3, Checkpoint(), number=number)
        write_positions(FILES, root, positions, durable=durable)

    def found() -> int:
        positions = read_positions(FILES, root)
        return -1 if positions is None else positions.written

    note(1, durable=True)
    note(2, durable=False)
    old = progress.read_bytes()
    assert found() == 2
    progress.write_bytes(old[:-4])
    assert found() == 1, "a power cut took a part of it"
    note(3, durable=True)
    assert not progress.exists()
    progress.write_bytes(old)
    assert found() == 3, "a power cut took the removal back"


def test_notes_that_are_forgotten_never_count_again(tmp_path: Path) -> None:
    root, old = str(tmp_path), Checkpoint(1, 1, 1)
    forget_positions(FILES, root)
    for durable in (True, False):
        write_positions(FILES, root, Positions("boot", False, 5, 5, 3, old), durable=durable)
    forget_positions(FILES, root)
    write_checkpoint(FILES, root, old, durable=False)
    assert read_positions(FILES, root) is None
