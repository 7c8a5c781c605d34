"""Debian's Python is started through the loader of its own libraries, by the name it was called."""

import subprocess
from pathlib import Path

import pytest

from scripts.debian_python import interpreter
from tests.debian import PackageMissing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the packages of Python 3.14; they are there already, and empty."""
    monkeypatch.setenv("COMETMQ_TEST_CACHE", str(tmp_path / "the cache"))
    made = tmp_path / "the cache" / "python3.14"
    made.mkdir(parents=True)
    return made


def test_a_script_starts_it_through_its_own_loader(folder: Path, tmp_path: Path) -> None:
    loader = folder / "usr" / "lib" / "x86_64-linux-gnu" / "ld-linux-x86-64.so.2"
    program = folder / "usr" / "bin" / "python3.14"
    for path, text in ((loader, '#!/bin/sh\nprintf "%s\\n" "$@"\n'), (program, "")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    script = interpreter("3.14")
    before = script.stat()
    assert interpreter("3.14").stat() == before
    called = tmp_path / "python"  # as in an environment
    called.symlink_to(script)
    done = subprocess.run(
        [called, "-c", "a b"], capture_output=True, text=True, timeout=60, check=True
    )
    own = ["--library-path", str(loader.parent), "--argv0", str(called), str(program)]
    assert done.stdout.splitlines() == [*own, "-c", "a b"]


def test_a_folder_without_it_is_named(folder: Path) -> None:
    with pytest.raises(PackageMissing, match=f"{folder} does not hold Python 3.14"):
        interpreter("3.14")
