"""What the system says of the pages of a map, asked of the real one."""

from pathlib import Path

from cometmq.store.files import PosixFiles

SIZE = 1 << 20


def test_only_bytes_that_were_touched_are_in_memory(tmp_path: Path) -> None:
    files = PosixFiles()
    handle = files.open(str(tmp_path / "log"), create=True)
    files.resize(handle, SIZE)
    is_resident = files.residency(files.map(handle, SIZE))
    assert not is_resident(0, SIZE)
    files.pwrite(handle, b"x" * 50_000, 100_000)
    assert is_resident(100_000, 150_000)
    assert is_resident(100_001, 100_002)
    assert not is_resident(90_000, 150_000)
    assert not is_resident(100_000, 160_000)
    files.close(handle)


def test_what_is_longer_than_an_answer_holds_is_not_asked(tmp_path: Path) -> None:
    files = PosixFiles()
    handle = files.open(str(tmp_path / "log"), create=True)
    size = 5_000 * 4_096
    files.resize(handle, size)
    mapped = files.map(handle, size)
    is_resident = files.residency(mapped)
    files.pwrite(handle, bytes(size), 0)
    assert is_resident(0, size // 2)
    assert not is_resident(0, size)
    files.close(handle)


def test_positions_outside_of_the_map(tmp_path: Path) -> None:
    files = PosixFiles()
    handle = files.open(str(tmp_path / "log"), create=True)
    files.resize(handle, 4_096)
    mapped = files.map(handle, 4_096)
    files.pwrite(handle, b"x" * 4_096, 0)
    assert files.residency(mapped)(0, 4_096)
    assert not files.residency(mapped)(1 << 40, (1 << 40) + 1)
    files.close(handle)
