"""Where commands look for a cluster."""

import argparse

import pytest

from cometmq.cli.connect import DEFAULT_NAMESRV, add_options, client, connection_of, run
from cometmq.cli.contexts import Connection
from cometmq.cli.main import main
from cometmq.core.errors import SettingsError
from cometmq.net.outgoing import TlsOptions
from cometmq.protocol.acl import Credentials


def test_the_default_is_this_machine() -> None:
    assert client(Connection()).config.name_servers == (DEFAULT_NAMESRV,)
    assert client(Connection("a:1;b:2")).config.name_servers == ("a:1", "b:2")
    with pytest.raises(SettingsError):
        client(Connection(";"))


def test_the_environment_has_all_of_tls_and_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "ACCESS_KEY": "ops",
        "SECRET_KEY": "secret-of-ops",
        "SECURITY_TOKEN": "token",
        "TLS_CA": "ca.pem",
        "TLS_CERT": "c.pem",
        "TLS_KEY": "c.key",
        "TLS_KEY_PASSWORD": "hush",
        "TLS_CHECK_HOST": "false",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"COMETMQ_{name}", value)
    parser = argparse.ArgumentParser()
    add_options(parser)
    config = client(connection_of(parser.parse_args([]))).config
    assert config.tls == TlsOptions("ca.pem", "c.pem", "c.key", "hush", check_host_name=False)
    assert config.credentials == Credentials("ops", "secret-of-ops", "token")
    config = client(connection_of(parser.parse_args(["--no-tls"]))).config
    assert config.tls is None


def test_the_environment_may_say_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert main(["topic", "list"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_coroutine_is_run_to_its_end() -> None:
    async def main() -> int:
        return 7

    assert run(main()) == 7
