"""The server commands' options: what they mean, and which of them win."""

import argparse
from pathlib import Path

import pytest

from cometmq.cli import servers
from cometmq.core.errors import SettingsError


def parsed(*words: str) -> argparse.Namespace:
    return servers.build_parser().parse_args(words)


def test_settings_are_key_value_words() -> None:
    assert servers.parse_settings(["a=1", "b = x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("word", ["a", "=1", " =1", ""])
def test_a_word_that_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(SettingsError, match="key=value"):
        servers.parse_settings([word])


def test_set_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# a comment\nbrokerName = broker-x\nlistenPort=1234\n", encoding="utf-8")
    options = parsed("broker", "-c", str(path), "--set", "listenPort=4321")
    assert servers.read_settings(options) == {"brokerName": "broker-x", "listenPort": "4321"}


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
    found = servers._with_options(options, listenPort=options.port)
    assert found == {"listenPort": "0", "bindAddress": "127.0.0.2"}


def test_a_command_is_needed() -> None:
    with pytest.raises(SystemExit) as ended:
        parsed()
    assert ended.value.code == 2
