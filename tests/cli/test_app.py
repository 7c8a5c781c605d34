"""Exit codes of the typed commands."""

import pytest

from cometmq.cli import app
from cometmq.core.errors import CometError, NotConnected, SettingsError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotConnected("a:1", "gone"), 1),
        (SettingsError("filter", "bad"), 2),
        (KeyboardInterrupt(), 130),
        (SystemExit(7), 7),
        (SystemExit("text"), 1),
        (SystemExit(None), 0),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "app", fail)
    assert app.main([]) == code


def test_a_comet_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise CometError("what, where, what to do")

    monkeypatch.setattr(app, "app", fail)
    assert app.main([]) == 1
    assert capsys.readouterr().err == "cometmq: what, where, what to do\n"
