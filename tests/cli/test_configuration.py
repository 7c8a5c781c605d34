"""Where the settings of a server come from."""

from pathlib import Path

import pytest

from cometmq.cli.configuration import Given, parse_settings
from cometmq.core.errors import SettingsError


def test_settings_are_key_value_words() -> None:
    assert parse_settings(["a=1", "b = x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("word", ["a", "=1", " =1", ""])
def test_a_word_that_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(SettingsError, match="key=value"):
        parse_settings([word])


def test_the_latest_source_wins(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# a comment\nbrokerName = broker-x\nlistenPort=1234\n", encoding="utf-8")
    given = Given()
    given.add_environment({"NAMESRV_ADDR": "a:1", "HOME": "x"})
    given.add_file(path)
    given.add_pairs(["listen_port=4321"])
    assert given.values == {"namesrvAddr": "a:1", "brokerName": "broker-x", "listen_port": "4321"}
    assert given.source("brokerName") == f"{path}:2"
    assert given.source("listenPort") == "--set"
    assert given.source("brokerId") == ""
    assert given.repeated() == []


def test_a_key_that_a_file_sets_twice_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("\ufeffbrokerIP1=a\nbroker_ip1=b\n", encoding="utf-8")
    given = Given()
    given.add_file(path)
    assert given.values == {"broker_ip1": "b"}
    assert given.repeated() == [f"{path} sets broker_ip1 in line 1 and in line 2: the last counts"]


def test_a_bad_line_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerName=\xff\nnonsense\n")
    with pytest.raises(SettingsError, match="line 2 is not of the form") as caught:
        Given().add_file(path)
    assert caught.value.where == str(path)
