"""Where commands look for a cluster."""

import pytest

from cometmq.cli.connect import DEFAULT_NAMESRV, client, run
from cometmq.cli.contexts import Connection
from cometmq.cli.main import main
from cometmq.core.errors import SettingsError


def test_the_default_is_this_machine() -> None:
    assert client(Connection()).config.name_servers == (DEFAULT_NAMESRV,)
    assert client(Connection("a:1;b:2")).config.name_servers == ("a:1", "b:2")
    with pytest.raises(SettingsError):
        client(Connection(";"))


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
