"""The command finds the room that serves its words, and servers do not pay for the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq import __version__
from cometmq.cli import main as entry
from cometmq.cli.main import main
from cometmq.cli.nouns import ENTRIES, load
from cometmq.core.errors import CometError, NotConnected, SettingsError
from cometmq.speedups import DESCRIPTION

#: Modules that a server has no use for before it serves.
HEAVY = (
    *("typer", "rich", "click", "yaml", "numpy"),
    *("cometmq.client", "cometmq.spark"),
)


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["help"]])
def test_help_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert [word for word in ENTRIES if f"\n  {word} " not in shown] == []
    assert main([]) == 2
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("word", [w for w, e in ENTRIES.items() if e.module and w != "spark"])
def test_every_command_has_help_with_an_example(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    noun = load(word)
    for words, command in noun.commands.items():
        assert command.examples, words
        assert all(example.startswith(f"cometmq {word}") for example in command.examples)
        assert main([word, *words.split(), "-h"]) == 0
        shown = capsys.readouterr().out
        assert command.examples[0] in shown
        assert command.summary.endswith(".")


def test_the_words_after_help_are_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "topic", "list"]) == 0
    assert capsys.readouterr().out.startswith("Usage: cometmq topic list")


def test_version_says_which_core_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cometmq {__version__}, core: {DESCRIPTION}\n"


def test_help_of_a_server_shows_its_options_and_the_commands_on_running_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["broker", "-h"]) == 0
    shown = capsys.readouterr().out
    assert "--stop-with-input" in shown
    assert "\n  promote " in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stat"], "cometmq: there is no command 'stat' (did you mean 'start'?); see cometmq -h"),
        (
            ["topic", "lst"],
            "cometmq topic: there is no command cometmq topic lst (did you mean 'list'?); "
            "see cometmq topic -h",
        ),
        (
            ["broker", "config"],
            "cometmq broker: there is no command cometmq broker config: "
            "use one of config get, config set; see cometmq broker -h",
        ),
        (
            ["topic", "list", "--al"],
            "cometmq topic list: there is no option --al (did you mean '--all'?); "
            "see cometmq topic list -h",
        ),
        (["topic", "list", "x"], "cometmq topic list: unexpected argument 'x'; "),
        (["topic", "show"], "cometmq topic show: the following arguments are required: TOPIC; "),
        (["topic", "create", "t", "--queues", "0"], "argument --queues: 0 is less than 1"),
        (["topic", "create", "t", "--queues", "x"], "argument --queues: 'x' is not a number"),
        (["topic", "list", "--watch", "0"], "not a number of seconds"),
        (["cluster", "health", "--timeout", "nan"], "argument --timeout: 'nan' is not a number"),
        (["cluster", "health", "--timeout", "inf"], "argument --timeout: 'inf' is not a number"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert told in line
    assert shown.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotConnected("a:1", "gone"), 1),
        (SettingsError("filter", "bad"), 2),
        (PermissionError(13, "Permission denied", "/x"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(7), 7),
        (SystemExit("text"), 1),
        (SystemExit(None), 0),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(entry, "dispatch", fail)
    assert main(["topic", "list"]) == code


def test_an_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise CometError("what, where,\nwhat to do \x1b[2J")

    monkeypatch.setattr(entry, "dispatch", fail)
    assert main(["topic"]) == 1
    assert capsys.readouterr().err == "cometmq topic: what, where, what to do \\x1b[2J\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise KeyError("bug")

    monkeypatch.setattr(entry, "dispatch", fail)
    with pytest.raises(KeyError):
        main(["topic"])


@pytest.mark.parametrize("word", ["schema", "-h"])
def test_output_that_nobody_reads_ends_the_command(word: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "cometmq.cli", word]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_unknown_log_level_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--log-level", "loud", "topic", "list"]) == 2
    assert "loud" in capsys.readouterr().err


def test_servers_take_their_own_words_also_behind_general_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--log-level", "error", "start", "--set", "brokerNam=a"]
    assert main(words) == 2
    assert "brokerName" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["-h", "topic list -h", "broker list -h", "group lag -h"])
def test_help_imports_neither_client_nor_broker(words: str) -> None:
    code = (
        "import sys; from cometmq.cli.main import main; main(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    wanted = ("rich", "asyncio", "yaml", "numpy", "cometmq.client", "cometmq.broker.")
    loaded = done.stderr.split()
    assert "cometmq.cli.main" in loaded
    heavy = [name for name in loaded if name.startswith(wanted)]
    assert heavy == []


LOADED_WHEN_READY = """
import os, signal, sys
from cometmq.cli.main import main
from cometmq.cli.serve import Lifetime

def announce(lifetime, line):
    lifetime._ready = True
    print(" ".join(sys.modules))
    os.kill(os.getpid(), signal.SIGTERM)

Lifetime.announce = announce
sys.exit(main(["start", "--store", sys.argv[1], "--namesrv-port", "0", "--broker-port", "0",
               "--set", "mappedFileSizeCommitLog=4194304"]))
"""


def test_a_server_that_is_ready_has_imported_nothing_it_does_not_need(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_WHEN_READY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = done.stdout.split()
    assert "cometmq.broker.app" in loaded
    assert "cometmq.namesrv.app" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_words_that_are_not_utf_8_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def encode(words: list[str]) -> int:
        return len(words[-1].encode())

    monkeypatch.setattr(entry, "dispatch", encode)
    assert main(["topic", "show", "\udcff"]) == 2
    assert capsys.readouterr().err == (
        "cometmq topic: a word of the command is not UTF-8: names on the wire are\n"
    )


FILES_AFTER_START = """
import os, sys
from cometmq.cli.main import main
code = main(["--version"])
opened = os.open("/dev/null", os.O_RDONLY)
with open(sys.argv[1], "w") as told:
    print(code, opened, sys.stdin.read() == "", file=told)
    print("to nobody", file=sys.stderr)
"""


def test_closed_streams_are_opened_before_any_file(tmp_path: Path) -> None:
    """Otherwise a file of a store would get the number of standard error."""
    told = tmp_path / "told"
    words = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", FILES_AFTER_START]
    subprocess.run([*words, str(told)], check=True, timeout=60)
    assert told.read_text() == "0 3 True\n"
