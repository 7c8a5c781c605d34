"""The published files work in an empty environment, without the repository, on every Python."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import cometmq
from scripts import build_core, debian_python
from tests.architecture.rules import ROOT
from tests.debian import PackageMissing

pytestmark = pytest.mark.operation

INSTALLED = Path(__file__).with_name("installed.py")
MINORS = (11, 12, 13, 14)
WHEEL_BYTES_MAX = 3 << 20
SDIST_BYTES_MAX = 5 << 20
#: Fast tests of everything that depends on the version of Python most.
SMOKE = ("core", "message", "protocol", "filter", "speedups", "net/test_server.py")
#: They are about the sources beside them, and about what the locked Hypothesis draws.
NOT_SMOKE = (
    "tests/speedups/test_choice.py",
    "tests/speedups/test_match.py::test_both_cores_match_the_same_records",
)
SMOKE_NEEDS = (
    *("hatchling", "hypothesis", "pytest", "pytest-asyncio", "pytest-cov", "pytest-xdist"),
    "trustme",
)


def run(words: list[str], folder: Path, **more: str) -> str:
    """Run a program outside of the repository; gives what it printed."""
    hidden = ("PYTHONPATH", "COMETMQ_PURE", "PYTHONDONTWRITEBYTECODE")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith("COVERAGE_")
    }
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=1_500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8_000:]
    return done.stdout


def built(kind: str, target: Path, **more: str) -> Path:
    """Build a distribution of the repository; gives its path."""
    run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)], ROOT, **more)
    [path] = target.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def environment(python: Path, folder: Path, *packages: str) -> Path:
    """Make an environment of a Python and install packages; gives its python."""
    if python == Path(sys.executable):
        venv.create(folder, with_pip=True)
    else:
        run([str(python), "-m", "venv", str(folder)], folder.parent)
    made = folder / "bin" / "python"
    run([str(made), "-m", "pip", "install", "--quiet", *packages], folder)
    return made


def result(python: Path, folder: Path) -> dict[str, str]:
    """Pass a message through a node of the installed package; gives what the program says."""
    program = folder / INSTALLED.name
    shutil.copy(INSTALLED, program)
    line = run([str(python), str(program)], folder).splitlines()[-1]
    return dict(word.split("=") for word in line.split())


@pytest.mark.compiled
def test_a_wheel_in_an_empty_environment_passes_a_message(wheel: Path, tmp_path: Path) -> None:
    python = environment(Path(sys.executable), tmp_path / "venv", str(wheel))
    said = result(python, tmp_path)
    assert said["core"] == "compiled"
    assert Path(said["from"]).is_relative_to(tmp_path / "venv")
    # Its first words work with nothing but what the wheel requires.
    command = str(tmp_path / "venv" / "bin" / "cometmq")
    assert run([command, "--version"], tmp_path).startswith(f"cometmq {cometmq.__version__}, core")
    run([command, "init", str(tmp_path / "conf")], tmp_path)


def test_the_wheel_of_plain_python_does_too(tmp_path: Path) -> None:
    pure = built("wheel", tmp_path / "dist", COMETMQ_PURE="1")
    python = environment(Path(sys.executable), tmp_path / "venv", str(pure))
    assert result(python, tmp_path)["core"].startswith("plain")


@pytest.mark.compiled
def test_the_wheel_passes_a_message_on_the_latest_python(wheel: Path, tmp_path: Path) -> None:
    """It need not be on the machine: Debian has it for now."""
    try:
        python = debian_python.interpreter("3.14")
    except PackageMissing as error:
        pytest.skip(f"needs Python 3.14: {error}")
    run([str(python), "-m", "venv", "--without-pip", str(tmp_path / "venv")], tmp_path)
    made = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet"]
    run([*install, str(wheel)], tmp_path)
    said = result(made, tmp_path)
    assert (said["core"], said["python"].rpartition(".")[0]) == ("compiled", "3.14")


def test_what_the_files_hold_and_weigh(wheel: Path, tmp_path: Path) -> None:
    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = opened.read(metadata).decode()
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pxd"))]
    assert "cometmq/py.typed" in names
    assert f"Version: {cometmq.__version__}\n" in text
    shown = re.findall(r"^Classifier: Programming Language :: Python :: 3\.(\d+)$", text, re.M)
    assert tuple(map(int, shown)) == MINORS
    assert len(re.findall(r"^Project-URL: ", text, re.M)) == 5
    sdist = built("sdist", tmp_path / "dist")
    assert sdist.stat().st_size < SDIST_BYTES_MAX
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    sources = {f"src/{build_core.PACKAGE}/{name}.c" for name in build_core.modules()}
    assert sources <= inside
    assert not [name for name in inside if name.startswith(("tests/", "docs/", "benchmarks/"))]


def pythons() -> dict[str, Path]:
    """The Pythons of this machine that CometMQ supports, by version; pyenv's before the others."""
    found: dict[str, Path] = {}
    for minor in MINORS:
        name = f"python3.{minor}"
        kept = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"))
        other = shutil.which(name, path="/usr/local/bin:/usr/bin")
        for path in (*kept, *([Path(other)] if other else [])):
            found.setdefault(f"3.{minor}", path)
    return found


@pytest.mark.deep
@pytest.mark.compiled
@pytest.mark.parametrize("version", pythons())
def test_one_wheel_serves_this_python_too(wheel: Path, tmp_path: Path, version: str) -> None:
    extras = f"{wheel}[broker,cli,compression,metrics,tls,tools]"
    python = environment(pythons()[version], tmp_path / "venv", extras, *SMOKE_NEEDS)
    said = result(python, tmp_path)
    assert (said["core"], said["python"].rpartition(".")[0]) == ("compiled", version)
    marks = " and ".join(
        f"not {mark}" for mark in ("deep", "store", "cluster", "compat", "spark", "operation")
    )
    words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    words += [f"--deselect={name}" for name in NOT_SMOKE]
    run([*words, *(f"tests/{name}" for name in SMOKE)], ROOT)
