"""A PostgreSQL that needs no root and no installation, and says why it cannot be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from cometmq.testing import postgres
from cometmq.testing.postgres import PostgresMissing, Programs, programs, running_postgres


@pytest.fixture(autouse=True)
def _can_be_had() -> None:
    try:
        programs()
    except PostgresMissing as error:
        pytest.skip(f"needs PostgreSQL: {error}")


def test_servers_side_by_side_and_nothing_left_of_them() -> None:
    with running_postgres() as first, running_postgres() as second:
        assert first != second
        with psycopg.connect(first) as connection:
            connection.execute("CREATE TABLE mine (x INT)")
        with psycopg.connect(second) as connection:
            found = connection.execute("SELECT to_regclass('mine')").fetchall()
        assert found == [(None,)]
    for conninfo in (first, second):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(conninfo)
        assert not Path(conninfo.partition("=")[2].partition(" ")[0]).exists()


def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres._SETTINGS, "shared_buffers", "none")
    with pytest.raises(PostgresMissing, match="shared_buffers"), running_postgres():
        raise AssertionError("it runs")


def test_a_machine_without_debians_tools_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PostgresMissing, match="apt-get"):
        postgres._fetch(tmp_path / "postgresql")


def test_packages_are_unpacked_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists that are missing are fetched by ourselves; what fails then leaves nothing behind."""
    asked: list[list[str]] = []

    def run(command: list[str], folder: Path) -> str:
        asked.append(command)
        if "--simulate" in command:
            return "Inst libpq5 (15)\nInst libllvm14 (1)\nInst postgresql-15 (15)\nInst perl (5)\n"
        if "download" in command and "Dir::State::Lists" not in " ".join(command):
            raise PostgresMissing("no lists")
        if command[0] == "apt-get" and "download" in command:
            assert command[-2:] == ["libpq5", "postgresql-15"]
            (folder / "postgresql-15.deb").touch()
        if command[0] == "dpkg":
            programs = Path(command[3]) / "usr/lib/postgresql/15/bin"
            programs.mkdir(parents=True)
            (programs / "initdb").touch()
        return ""

    monkeypatch.setattr(postgres, "_run", run)
    target = tmp_path / "cache" / "postgresql"
    postgres._fetch(target)
    assert postgres._newest(target / "usr") == target / "usr/lib/postgresql/15/bin"
    assert [path.name for path in target.parent.iterdir()] == ["postgresql"]
    assert sum("update" in command for command in asked) == 1

    def fail(command: list[str], folder: Path) -> str:
        raise PostgresMissing("no network")

    monkeypatch.setattr(postgres, "_run", fail)
    with pytest.raises(PostgresMissing, match="no network"):
        postgres._fetch(tmp_path / "other" / "postgresql")
    assert list((tmp_path / "other").iterdir()) == []


def test_a_command_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(PostgresMissing, match=r"ls .*nowhere"):
        postgres._run(["ls", "nowhere"], tmp_path)


def test_fetched_libraries_are_found(tmp_path: Path) -> None:
    assert "LD_LIBRARY_PATH" not in Programs(tmp_path).environment()
    environment = Programs(tmp_path, tmp_path / "lib").environment()
    assert environment["LD_LIBRARY_PATH"] == str(tmp_path / "lib")
    subprocess.run(["true"], env=environment, check=True)


def test_the_cache_is_where_the_servers_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_TEST_CACHE", str(tmp_path / "open"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert postgres._cache() == tmp_path / "open"
    monkeypatch.delenv("COMETMQ_TEST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert postgres._cache() == tmp_path / "cometmq-tests"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert postgres._cache() == Path("/var/cache/cometmq-tests")
    tmp_path.chmod(0o700)
    monkeypatch.setenv("COMETMQ_TEST_CACHE", str(tmp_path / "closed"))
    assert postgres._cache() == Path("/var/cache/cometmq-tests")
