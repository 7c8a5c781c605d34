"""The server commands' options: what they mean, and which of them win."""

import argparse
from pathlib import Path

import pytest

from cometmq.cli import servers
from cometmq.cli.configuration import Given
from cometmq.core.settings import to_properties
from cometmq.store.config import StoreConfig


def parsed(*words: str) -> argparse.Namespace:
    return servers.build_parser().parse_args(words)


@pytest.mark.parametrize("text", ["-1", "65536", "x", "", "1.5"])
def test_a_bad_port_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("start", "--broker-port", text)
    assert ended.value.code == 2
    assert "--broker-port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["start", "--set", "mappedFileSizeComitLog=1"], "mappedFileSizeCommitLog"),
        (["start", "--set", "flushDiskType=SOMETIMES"], "SYNC_FLUSH"),
        (["start", "--set", "nonsense"], "key=value"),
        (["namesrv", "--set", "brokerName=a"], "no such setting"),
        (["namesrv", "--set", "listenPort=many"], "is not a number"),
        (["broker", "--set", "brokerRole=SLAVE"], "brokerId"),
        (["broker", "-c", "no/such/file.conf"], "no/such/file.conf"),
    ],
)
def test_a_bad_setting_is_one_clear_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert servers.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cometmq {words[0]}: ")
    assert complaint in line


def test_options_win_over_settings_in_any_spelling() -> None:
    options = parsed("namesrv", "-p", "0", "--set", "listen_port=9", "--bind", "127.0.0.2")
    given = Given()
    servers.gather(given, options)
    assert given.values == {"listenPort": "0", "bindAddress": "127.0.0.2"}
    assert given.source("listen.port") == "--port"


def test_every_problem_of_a_file_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokrName=a\n\nmaxMessageSize=4M\n", encoding="utf-8")
    words = ["broker", "-c", str(path), "--set", "flushDiskTyp=ASYNC_FLUSH"]
    assert servers.main(words) == 2
    first, second, third = sorted(capsys.readouterr().err.splitlines())
    assert first == (
        "cometmq broker: --set: setting 'flushDiskTyp': no such setting; did you mean "
        "'flushDiskType'?"
    )
    assert second.startswith(f"cometmq broker: {path}:1: setting 'brokrName'")
    assert third.startswith(f"cometmq broker: {path}:3: setting 'maxMessageSize': '4M'")


def test_a_broker_reads_rocketmq_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.9:9")
    monkeypatch.setenv("ROCKETMQ_HOME", "")
    given = Given()
    servers.gather(given, parsed("broker"))
    assert given.values == {"namesrvAddr": "127.0.0.9:9"}
    assert given.source("namesrvAddr") == "environment NAMESRV_ADDR"
    given = Given()
    servers.gather(given, parsed("broker", "-n", "a:1"))
    assert given.values == {"namesrvAddr": "a:1"}
    given = Given()
    servers.gather(given, parsed("start"))
    assert given.values == {}


def test_a_command_is_needed() -> None:
    with pytest.raises(SystemExit) as ended:
        parsed()
    assert ended.value.code == 2


def test_start_makes_small_log_files_unless_told_otherwise(tmp_path: Path) -> None:
    assert size_of_start(tmp_path) == (str(32 * 1024 * 1024), "cometmq start")
    told = size_of_start(tmp_path, "--set", "mapped_file_size_commit_log=1073741824")
    assert told == ("1073741824", "--set")


@pytest.mark.parametrize("names", [[0], [0, 1 << 30], [1 << 30, 3 << 30, 2 << 30]])
def test_start_keeps_the_size_of_an_existing_store(tmp_path: Path, names: list[int]) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / "notes.txt").touch()
    for base in names:
        with open(log / f"{base:020d}", "wb") as file:
            file.truncate(1 << 30)
    assert size_of_start(tmp_path) == ("1073741824", f"the log files in {log}")


def test_start_finds_the_log_elsewhere(tmp_path: Path) -> None:
    with open(tmp_path / f"{0:020d}", "wb") as file:
        file.truncate(65_536)
    elsewhere = f"store.path.commit.log={tmp_path}"
    assert size_of_start(tmp_path / "other", "--set", elsewhere)[0] == "65536"


def test_start_finds_a_log_in_several_directories(tmp_path: Path) -> None:
    for number in range(3):
        place = tmp_path / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        with open(place / f"{number * 65_536:020d}", "wb") as file:
            file.truncate(65_536)
    paths = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    found = size_of_start(tmp_path / "other", "--set", f"storePathCommitLog={paths}")
    assert found == ("65536", f"the log files in {paths.replace(',', ', ')}")
    read_only = f"readOnlyCommitLogStorePaths={paths}"
    only = f"storePathCommitLog={tmp_path / 'c'},"
    assert size_of_start(tmp_path / "other", "--set", only, "--set", read_only)[0] == "65536"


def test_start_does_not_take_the_size_of_a_file_whose_creation_was_interrupted(
    tmp_path: Path,
) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / f"{0:020d}").touch()
    assert size_of_start(tmp_path)[1] == "cometmq start"


def size_of_start(store: Path, *words: str) -> tuple[str, str]:
    """The size of log files that `cometmq start` uses, and where it comes from."""
    options = parsed("start", "--store", str(store), *words)
    given = Given()
    servers.gather(given, options)
    prepared = options.prepare(options, given)
    (size,) = {
        to_properties(part)["mappedFileSizeCommitLog"]
        for each in prepared.parts()
        for part in each.parts
        if isinstance(part, StoreConfig)
    }
    return size, given.source("mappedFileSizeCommitLog")
