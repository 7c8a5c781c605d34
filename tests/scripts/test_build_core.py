"""The core's build: only what changed, with what the machine has, and never in the way."""

import os
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import build_core
from tests.architecture.rules import ROOT

MODULE = "def answer():\n    return {}\n"


def working_compiler() -> str:
    """The command of a compiler that builds extension modules; empty without one."""
    try:
        return shlex.join(build_core.find_toolchain(fetch=False).command)
    except build_core.BuildError:
        return ""


COMPILER = working_compiler()
#: pytest collects these tests only where something compiles.
__test__ = bool(COMPILER)


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two modules in a folder of the test's own."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("COMETMQ_PURE", raising=False)
    folder = tmp_path / "compiled"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.pyx").write_text(MODULE.format(1))
    monkeypatch.setattr(build_core, "SOURCES", folder)
    monkeypatch.setattr(build_core, "BUILD", tmp_path / "build")
    return folder


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **bodies: str) -> None:
    """Let only these shell scripts be found as commands, and nothing be fetched yet."""
    monkeypatch.setattr(build_core, "FETCHED", folder.parent / "compiler")
    monkeypatch.setattr(build_core, "ZIG", build_core.FETCHED / "zig" / "ziglang" / "zig")
    folder.mkdir()
    for name, body in bodies.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def built(folder: Path) -> dict[str, int]:
    """When each module in the folder was built."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.abi3.so")}


def answer(folder: Path, name: str) -> str:
    """What a built module's function returns, in a process of its own."""
    program = f"import {name}; print({name}.answer())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_only_what_changed_is_built(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build_core.main([]) == 0
    assert capsys.readouterr().err.startswith("core: built one, two with ")
    assert answer(sources, "one") == "1"
    first = built(sources)
    assert build_core.main([]) == 0
    assert built(sources) == first
    assert capsys.readouterr().err == ""
    (sources / "two.pyx").write_text(MODULE.format(2))
    assert build_core.main([]) == 0
    assert capsys.readouterr().err.startswith("core: built two with ")
    assert built(sources)["one.abi3.so"] == first["one.abi3.so"]
    assert answer(sources, "two") == "2"


def test_a_module_without_source_goes(sources: Path) -> None:
    build_core.main([])
    (sources / "one.pyx").unlink()
    (sources / "two.pyx").write_text(MODULE.format(2))
    build_core.main([])
    assert list(built(sources)) == ["two.abi3.so"]


def test_without_a_compiler_one_line_says_so(
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build_core.main([])
    capsys.readouterr()
    (sources / "one.pyx").write_text(MODULE.format(2))
    commands(tmp_path / "bin", monkeypatch)
    assert build_core.main([]) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("core: not compiled, plain Python runs (no C compiler)")
    assert "apt-get install -y gcc" in line
    # What an older source said is not left to be imported.
    assert list(built(sources)) == ["two.abi3.so"]
    assert build_core.main(["--strict"]) == 1


def test_a_compiler_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands(tmp_path / "bin", monkeypatch, gcc="echo 'cc1: fatal error: broken' >&2; exit 1")
    assert build_core.main([]) == 0
    assert "(no C compiler: gcc: cc1: fatal error: broken)" in capsys.readouterr().err
    monkeypatch.setenv("CC", "/nowhere/cc -m64")
    assert build_core.main([]) == 0
    assert "(no C compiler: cc: No such file or directory)" in capsys.readouterr().err


def test_a_source_that_does_not_compile_is_shown(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sources / "one.pyx").write_text("def answer():\n    return nothing_like_this\n")
    assert build_core.main([]) == 0
    said = capsys.readouterr().err
    assert "one.pyx:2:11: undeclared name not builtin: nothing_like_this" in said
    assert said.splitlines()[-1].startswith("core: not compiled, plain Python runs (")
    assert "one.abi3.so" not in built(sources)


def test_zig_is_installed_where_no_compiler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_run, real_path = build_core.run, os.environ["PATH"]
    installed: list[str] = []

    def run(command: list[str], folder: str | None = None) -> None:
        if "pip" not in command:
            real_run(command, folder)
            return
        installed.extend(command)
        build_core.ZIG.parent.mkdir(parents=True)
        # What zig is told before a compiler's own arguments.
        build_core.ZIG.write_text(f'#!/bin/sh\nshift 2\nPATH={real_path} exec {COMPILER} "$@"\n')
        build_core.ZIG.chmod(0o755)

    monkeypatch.setattr(build_core, "run", run)
    commands(tmp_path / "bin", monkeypatch)
    assert build_core.main(["--fetch"]) == 0
    assert "--require-hashes" in installed
    assert str(ROOT / "requirements" / "compiler.lock") in installed
    assert " with zig in " in capsys.readouterr().err
    assert build_core.find_toolchain(fetch=False).command[0] == str(build_core.ZIG)


def test_headers_are_debians_where_python_brings_none(
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    headers = sysconfig.get_paths()["include"]
    missing = {"include": str(tmp_path / "none"), "platinclude": str(tmp_path / "none")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: missing)
    # This Debian packages another Python than the one that runs; and dpkg-deb has both folders.
    commands(
        tmp_path / "bin",
        monkeypatch,
        cc=f'PATH={os.environ["PATH"]} exec {COMPILER} "$@"',
        apt_get='case "$*" in "download libpython3.13-dev") : > package.deb;; *) exit 100;; esac',
        dpkg_deb=f"""PATH={os.environ["PATH"]}
            include="$3/usr/include"
            mkdir -p "$include/arch/python3.13"
            cp -r {headers} "$include/python3.13"
            mv "$include/python3.13/pyconfig.h" "$include/arch/python3.13" """,
    )
    assert build_core.main([]) == 0
    assert "(no headers of Python: cc: " in capsys.readouterr().err
    assert build_core.main(["--fetch"]) == 0
    assert "core: built one, two with cc" in capsys.readouterr().err
    assert answer(sources, "one") == "1"


def test_nothing_that_can_be_fetched_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], folder: str | None = None) -> None:
        raise build_core.BuildError("pip: error: no such index")

    monkeypatch.setattr(build_core, "run", run)
    commands(tmp_path / "bin", monkeypatch)
    assert build_core.main(["--fetch"]) == 0
    assert "(no C compiler: pip: error: no such index)" in capsys.readouterr().err.splitlines()[-1]


def package(kind: str, target: Path, root: Path = ROOT, **environment: str) -> Path:
    """Build a distribution of the whole project; gives its path."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("COMETMQ_PURE", "CC")
    }
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), "-t", kind]
    done = subprocess.run(
        command, cwd=root, env=inherited | environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    [path] = target.iterdir()
    return path


#: Every module of the core, as a wheel has it.
MODULES = [*build_core.modules()]
BUILT = [f"{name}{build_core.SUFFIX}" for name in MODULES]


def compiled_files(wheel: Path) -> list[str]:
    """The compiled core's files in a wheel, in order."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    prefix = build_core.PACKAGE + "/"
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def test_a_wheel_serves_every_later_python_of_its_platform(tmp_path: Path) -> None:
    wheel = package("wheel", tmp_path / "dist")
    assert wheel.name.endswith(f"-cp311-abi3-{build_core.this_platform()}.whl")
    assert compiled_files(wheel) == ["__init__.py", *BUILT]


def test_a_wheel_of_plain_python_serves_all(tmp_path: Path) -> None:
    wheel = package("wheel", tmp_path / "dist", COMETMQ_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert compiled_files(wheel) == ["__init__.py"]


def test_a_source_distribution_has_the_generated_c_and_needs_no_compiler(tmp_path: Path) -> None:
    with tarfile.open(package("sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    [root] = tmp_path.glob("cometmq-*")
    generated = sorted(path.stem for path in (root / "src" / build_core.PACKAGE).glob("*.c"))
    assert generated == MODULES
    # Where neither Cython nor a compiler is found, and where a compiler is.
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "cython.py").write_text("raise ImportError\n")
    hidden = {"PYTHONPATH": str(tmp_path / "path")}
    plain = package("wheel", tmp_path / "plain", root, **hidden, CC="/nowhere/cc")
    assert plain.name.endswith("-py3-none-any.whl")
    wheel = package("wheel", tmp_path / "dist", root, **hidden)
    assert compiled_files(wheel) == ["__init__.py", *BUILT]


def test_an_unknown_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(build_core.BuildError, match="=amiga is none of manylinux_2_17_x86_64"):
        build_core.build_for("amiga")
