"""Where the settings of a server come from."""

import json
import socket
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig, kept_path, load
from cometmq.cli import servers
from cometmq.cli.configuration import (
    Given,
    configured_broker,
    explain,
    parse_settings,
    ports_of,
    print_config,
)
from cometmq.cli.main import main
from cometmq.core.errors import SettingsError
from cometmq.core.settings import parse_properties


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


def test_a_key_is_explained() -> None:
    (found,) = explain("max_message_size")
    assert (found.key, found.server, found.live) == ("maxMessageSize", "broker", True)
    assert (found.default, found.unit, found.range) == ("4194304", "bytes", "at least 1 bytes")
    assert (found.effect, found.rocketmq) == (True, "the same")
    (ours,) = explain("haRejoin")
    assert ours.see == "docs/slaves.md#when-logs-differ"
    assert ours.rocketmq == "not a setting of RocketMQ"


def test_a_key_of_both_servers_is_explained_for_both() -> None:
    found = {each.server: each.default for each in explain("listenPort")}
    assert found == {"broker": "10911", "name server": "9876"}


def test_a_key_without_effect_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = explain("ABORTFILE")
    assert (found.key, found.effect) == ("abortFile", False)
    assert main(["config", "explain", "abortFile", "-o", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["rocketmq"] == found.rocketmq
    assert main(["config", "explain", "abortFil"]) == 2
    assert "did you mean 'abortFile'" in capsys.readouterr().err


def test_an_unknown_key_is_not_explained() -> None:
    with pytest.raises(SettingsError, match="did you mean 'maxMessageSize'"):
        explain("maxMesageSize")


def test_all_settings_are_printed_with_their_sources(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("abortFile=x\n\nfileReservedTime=48\n", encoding="utf-8")
    kept = Path(kept_path(str(tmp_path)))
    kept.parent.mkdir()
    kept.write_text("brokerPermission=4\n", encoding="utf-8")
    given = Given()
    given.add_file(path)
    given.add_pairs([f"storePathRootDir={tmp_path}", "bindAddress=127.0.0.2"])
    given.add("tlsClientKeyPassword", "s3cret", "--set")
    broker, store, notices = load(given.values)
    lines = print_config(configured_broker(broker, store), given, notices)
    assert lines[0] == "# broker: 6 settings differ from their defaults"
    assert lines[1].startswith("# notice: these settings have no effect")
    before = {line: lines[at] for at, line in enumerate(lines[1:])}
    assert before["fileReservedTime=48"] == f"# {path}:3; default: 72"
    assert before["brokerPermission=4"] == f"# changed live, {kept}; default: 6"
    assert before["bindAddress=127.0.0.2"] == "# --set; default: 127.0.0.1"
    assert before["brokerIP1=127.0.0.2"] == "# follows from other settings; default: 127.0.0.1"
    assert "s3cret" not in "\n".join(lines)
    values = parse_properties("\n".join(lines))
    values.pop("tlsClientKeyPassword")
    assert load(values)[0].broker_permission == 4, "what is printed is a property file"


def test_ports_have_the_names_of_their_settings(tmp_path: Path) -> None:
    broker, store, _ = load({"haListenPort": "7", "storePathRootDir": str(tmp_path)})
    found = ports_of(configured_broker(broker, store))
    assert {port: setting.split(",")[0] for port, setting in found.items()} == {
        10911: "listenPort",
        10909: "listenPort",
        7: "haListenPort",
    }
    assert BrokerConfig().ha_listen_port == 0


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = servers.main([*words, "--check"])
    shown = capsys.readouterr()
    assert shown.out == ""
    return code, shown.err


def test_a_check_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "a" / "store"
    code, shown = checked(
        capsys, "broker", "--set", f"storePathRootDir={root}", "--set", "listenPort=0"
    )
    assert (code, shown) == (0, "ok: broker can start\n")
    assert list(tmp_path.iterdir()) == []


def test_a_check_names_all_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text("accounts: [", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, shown = checked(
            capsys,
            *("broker", "--set", f"storePathRootDir={tmp_path / 'file' / 'store'}"),
            *("--set", f"listenPort={port}", "--set", "tlsServerMode=permissive"),
            *("--set", "aclEnable=true", "--set", f"rocketmqHome={tmp_path}"),
            *("--set", f"credentialsPath={tmp_path / 'missing'}"),
        )
    assert code == 2
    lines = shown.splitlines()
    assert all(line.startswith("cometmq broker: ") for line in lines)
    for word in ("listenPort", "not a directory", "tlsServerCertPath", "plain_acl.yml", "missing"):
        assert [line for line in lines if word in line], word


def test_a_check_of_a_node_looks_at_both_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("start", "--store", str(tmp_path), "--broker-port", "0", "--namesrv-port", "0")
    assert checked(capsys, *words) == (0, "ok: name server and broker can start\n")


def test_a_check_refuses_access_control_without_accounts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("broker", "--set", f"storePathRootDir={tmp_path}", "--set", "listenPort=0")
    acl = (*words, "--set", "aclEnable=true")
    code, shown = checked(capsys, *acl)
    assert code == 2
    assert f"there is no account in {tmp_path / 'conf' / 'plain_acl.yml'}" in shown
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: operator-key\n  secretKey: a-long-secret\n  admin: true\n"
    )
    assert checked(capsys, *acl) == (0, "ok: broker can start\n")
