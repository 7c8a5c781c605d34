"""The demo as a process: whatever ends it, it leaves no process behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORDS = ("-m", "examples.demo", "--no-spark", "--changes", "100000", "--directory")


def processes_with(word: str) -> list[str]:
    """Command lines of running processes that name `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended just now
        if word in line:
            found.append(line)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_demo_takes_its_broker_along(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, *WORDS, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("changing"):
                break
        assert len(processes_with(str(out))) == 2
        process.send_signal(number)
        _, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert complaint == "demo: interrupted\n"
    assert processes_with(str(out)) == []
