"""The set-up says what a machine lacks and how to get it, and stops before it changes anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.rules import ROOT

TOOLS = ("sh", "sed", "head", "dirname")
JAVA_17 = "apt-get install -y openjdk-17-jre-headless"
PYTHON = "apt-get install -y python3 python3-venv"
VENV = "apt-get install -y python3-venv"

REAL_PYTHON = f'exec {sys.executable} "$@"'
OLD_PYTHON = "exit 1"
PYTHON_WITHOUT_VENV = f'case "$*" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"'


def java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


def run_setup(tmp_path: Path, commands: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Runs the script on a machine that has only TOOLS and the given commands."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (bin_dir / tool).symlink_to(found)
    for name, body in commands.items():
        path = bin_dir / name
        path.write_text(f"#!{bin_dir}/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
    environment = {"PATH": str(bin_dir), "COMETMQ_VENV": str(tmp_path / "venv")}
    if "LANG" in os.environ:
        environment["LANG"] = os.environ["LANG"]
    return subprocess.run(
        [str(bin_dir / "sh"), str(ROOT / "scripts" / "setup.sh")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("commands", "hints"),
    [
        ({}, [PYTHON, JAVA_17]),
        ({"python3": OLD_PYTHON, "java": java("17.0.15")}, [PYTHON]),
        ({"python3": REAL_PYTHON}, [JAVA_17]),
        ({"python3.11": REAL_PYTHON, "java": java("11.0.2")}, [JAVA_17]),
        ({"python3.11": REAL_PYTHON, "java": java("1.8.0_402")}, [JAVA_17]),
        ({"python3": PYTHON_WITHOUT_VENV, "java": java("21")}, [VENV]),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, commands: dict[str, str], hints: list[str]
) -> None:
    done = run_setup(tmp_path, commands)
    said = [line.split("get it:")[1].strip() for line in done.stderr.splitlines() if "get " in line]
    assert done.returncode == 1
    assert said == hints
    assert not (tmp_path / "venv").exists()
