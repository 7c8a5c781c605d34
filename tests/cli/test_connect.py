"""Where commands look for a cluster."""

import argparse

import pytest

from cometmq.cli.connect import DEFAULT_NAMESRV, add_options, client, connection_of, run
from cometmq.cli.contexts import Connection, Contexts, save
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


PROD = Connection(
    "prod:1", "ops", "s3cret", "token", tls_ca="ca.pem", tls_cert="c.pem", tls_key="c.key",
    tls_key_password="hush",
)  # fmt: skip


def found(*words: str, current: Connection = PROD) -> Connection:
    """Return what a command connects to if ``current`` is the current context, named prod."""
    save(Contexts("prod", {"prod": current}))
    parser = argparse.ArgumentParser()
    add_options(parser)
    return connection_of(parser.parse_args(words))


def test_a_context_is_used_whole() -> None:
    assert found() == found("--context", "prod") == PROD


@pytest.mark.parametrize("level", ["-n", "-n --context prod", "NAMESRV_ADDR"])
def test_an_account_goes_to_no_name_server_of_a_level_above(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """The authorities stay trusted, so the connection is no less safe than the context's."""
    words: list[str] = []
    if level.startswith("-n"):
        words = ["-n", "other:2", *level.split()[1:]]
    else:
        monkeypatch.setenv(level, "other:2")
    assert found(*words) == Connection("other:2", tls="true", tls_ca="ca.pem")
    only_key = Connection("prod:1", tls_cert="c.pem")
    assert found(*words, current=only_key) == Connection("other:2", tls="true")
    file = Connection("prod:1", credentials="tools.yml")
    assert found(*words, current=file) == Connection("other:2")


def test_an_account_of_the_environment_goes_to_no_name_server_of_an_option_or_context(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "ops")
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "s3cret")
    bare = Connection("bare:1")
    assert found("--context", "prod", current=bare) == bare
    assert not capsys.readouterr().err
    assert found("-n", "other:2", current=bare) == Connection("other:2")
    shown = capsys.readouterr().err
    assert "the account of the environment is not used for -n: set NAMESRV_ADDR" in shown
    assert "s3cret" not in shown
    monkeypatch.setenv("NAMESRV_ADDR", "other:2")
    assert found(current=bare) == Connection("other:2", "ops", "s3cret")


def test_the_environment_does_not_weaken_the_tls_of_a_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMETMQ_TLS_VERIFY", "false")
    monkeypatch.setenv("COMETMQ_TLS_CHECK_HOST", "false")
    monkeypatch.setenv("COMETMQ_TLS", "false")
    assert found() == found("--context", "prod") == PROD
    monkeypatch.setenv("NAMESRV_ADDR", "other:2")
    assert found() == Connection("other:2", tls="false", tls_verify="false", tls_check_host="false")


def test_tls_of_two_levels_is_not_joined() -> None:
    own = found("--tls-ca", "own.pem")
    assert own == Connection("prod:1", "ops", "s3cret", "token", tls_ca="own.pem")
    unchecked = found("--context", "prod", "--no-tls-verify")
    assert unchecked == Connection("prod:1", "ops", "s3cret", "token", tls_verify="false")


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
