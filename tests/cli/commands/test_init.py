"""cometmq init: files that describe every setting, and that servers start with."""

import json
import re
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig, load
from cometmq.cli.commands.init import BROKER_FILE, NAMESRV_FILE, WIDTH, comment, file_text
from cometmq.cli.main import main
from cometmq.core.settings import declarations, known_keys, parse_properties, to_properties
from cometmq.namesrv import config as namesrv_config
from cometmq.namesrv.config import NamesrvConfig
from cometmq.store.config import StoreConfig


def test_the_files_pass_the_check_of_their_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "conf"
    words = ["init", str(conf), "--store", str(tmp_path / "store"), "-o", "json"]
    assert main(words) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [each["path"] for each in items] == [str(conf / NAMESRV_FILE), str(conf / BROKER_FILE)]
    free = ["--set", "listenPort=0", "--check"]
    for server, name in (("broker", BROKER_FILE), ("namesrv", NAMESRV_FILE)):
        assert main([server, "-c", str(conf / name), *free]) == 0
        assert "can start" in capsys.readouterr().err
    broker, store, notices = load(parse_properties((conf / BROKER_FILE).read_text()))
    assert notices == []
    assert broker.name_servers == ["127.0.0.1:9876"]
    assert store.store_path_root_dir == str(tmp_path / "store")


@pytest.mark.parametrize(
    "configs", [(BrokerConfig(), StoreConfig()), (NamesrvConfig(),)], ids=["broker", "namesrv"]
)
def test_every_setting_is_described_once(
    configs: tuple[BrokerConfig | StoreConfig | NamesrvConfig, ...],
) -> None:
    text = file_text("server", {}, *configs)
    shown = re.findall(r"^#(\w+)=(.*)$", text, re.MULTILINE)
    assert len(shown) == len(dict(shown))
    assert dict(shown).keys() == {key for each in configs for key in known_keys(type(each))}
    for each in reversed(configs):
        values = to_properties(each)
        assert {key: dict(shown)[key] for key in values} == values
    for each in configs:
        for declared in declarations(type(each)).values():
            lines = comment(declared)
            assert "\n".join(lines) in text
            assert all(line.startswith("# ") and len(line) <= WIDTH for line in lines)


def test_all_defaults_may_be_uncommented() -> None:
    """What stands after the # is what the server has without it."""
    text = re.sub(r"^#(?=\w+=)", "", file_text("x", {}, BrokerConfig(), StoreConfig()), flags=re.M)
    broker, store, _ = load(parse_properties(text))
    assert (broker, store) == (BrokerConfig(), StoreConfig())
    text = re.sub(r"^#(?=\w+=)", "", file_text("x", {}, NamesrvConfig()), flags=re.M)
    assert namesrv_config.load(parse_properties(text))[0] == NamesrvConfig()


def test_one_file_may_be_wanted(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path), "--broker"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [BROKER_FILE]
    assert main(["init", str(tmp_path), "--namesrv"]) == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / BROKER_FILE
    path.write_text("mine", encoding="utf-8")
    assert main(["init", str(tmp_path)]) != 0
    assert f"{path} exists; it is not overwritten" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / NAMESRV_FILE).exists()
