"""Entry point of the ``cometmq`` command: runs a command, and turns errors into exit codes.

A command imports only the modules that it needs: a broker must respond within 600 ms of its start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Final

from cometmq.cli.nouns import ENTRIES, GROUPS, load

FAILED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130
#: The exit code that a shell reports for a program that SIGPIPE ended: 128 + 13.
BROKEN_PIPE: Final = 141
#: Modules that only some commands need, each with the extra that installs it.
_EXTRAS: Final = {"numpy": "tools"}

EXAMPLES: Final = (
    "cometmq start --store data",
    "cometmq topic create orders --queues 8",
    "cometmq group lag billing --watch",
    "cometmq topic list -o json",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 cannot be done as requested."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        done = _run(words)
        sys.stdout.flush()
        return done
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output when it exits: without a reader, that would fail.
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        code = _exit_code(error, words)
        if code is None:
            raise
        noun = f" {words[0]}" if words and words[0] in ENTRIES else ""
        if str(error):
            from cometmq.cli.render import one_line

            print(f"cometmq{noun}: {one_line(_sentence(error))}", file=sys.stderr)
        return code


def _run(words: list[str]) -> int:
    try:
        words[:] = _general_options(words)
        return dispatch(words)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else FAILED if done.code else 0


def _prepare_streams() -> None:
    """Open standard streams that are closed; escape characters that the output cannot encode.

    Otherwise the next file that is opened, such as a log file of a store, would get the descriptor
    of a closed stream, and error messages would be written into that file.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            with open(os.devnull, "r+b", buffering=0) as nothing:
                spare = os.dup(nothing.fileno())
            os.dup2(spare, number)
            os.close(spare)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def dispatch(words: Sequence[str]) -> int:
    """Run the command in ``words`` and return its exit code. Raises CometError."""
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return dispatch([*words[1:], "-h"])
        print(help_text())
        return 0 if words else REFUSED
    if words[0] == "complete":  # what the scripts of `cometmq completion` call
        from cometmq.cli.completion import complete

        print("\n".join(complete(words[1:])))
        return 0
    entry = ENTRIES.get(words[0])
    if entry is None:
        from cometmq.cli.command import Refused
        from cometmq.cli.parser import nearest

        raise Refused(
            f"there is no command {words[0]!r}{nearest(words[0], ENTRIES)}; see cometmq -h"
        )
    if entry.is_server and (not entry.module or not words[1:] or words[1].startswith("-")):
        from cometmq.cli.servers import main as serve

        if entry.module and words[1:2] in (["-h"], ["--help"]):
            return _server_help(words[0])
        return serve(words)
    return load(words[0]).run(words[1:])


def _server_help(word: str) -> int:
    from cometmq.cli.servers import parser_of

    noun = load(word)
    print(f"cometmq {word} runs a server; cometmq {word} COMMAND works on running ones.\n")
    print(noun.help_text())
    print(f"\ncometmq {word} without a command:\n\n{parser_of(word).format_help()}", end="")
    return 0


def help_text() -> str:
    """Return the help of the program."""
    from cometmq.cli.command import columns

    text = (
        "Usage: cometmq COMMAND [...]\n\n"
        "Apache RocketMQ rebuilt in Python: broker, name server, client and tools.\n"
    )
    for title, entries in GROUPS.items():
        rows = [(word, entry.summary) for word, entry in entries.items()]
        text += f"\n{title}:\n{columns(rows)}\n"
    options = [
        ("-h, --help", "Print help; also after each command."),
        ("--version", "Print the version and the core in use."),
        (
            "--log-level LEVEL",
            "Least level to log: debug, info, warning or error (the default of "
            "commands on a running cluster).",
        ),
    ]
    text += f"\noptions:\n{columns(options)}\n"
    return text + "\nexamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES)


def _general_options(words: list[str]) -> list[str]:
    """Handle the options before the command; return the words from the command on."""
    level = ""
    while words and words[0].startswith("--"):
        name, equals, value = words[0].partition("=")
        if name == "--version":
            _print_version()
            raise SystemExit(0)
        if name != "--log-level":
            break
        rest = words[1:] if equals else words[2:]
        level, words = value if equals else (words[1] if words[1:] else "?"), rest
    if level:
        from cometmq.cli import logs
        from cometmq.cli.command import Refused

        if level not in logs.LEVELS:
            raise Refused(f"--log-level: {level!r} is not one of {', '.join(logs.LEVELS)}")
        logs.configure(level)
    return words


def _print_version() -> None:
    from cometmq import __version__
    from cometmq.speedups import DESCRIPTION

    print(f"cometmq {__version__}, core: {DESCRIPTION}")


def _exit_code(error: Exception, words: Sequence[str]) -> int | None:
    """Return the exit code for an error of a command with these words; None for a bug."""
    from cometmq.core.errors import CometError, SettingsError

    code = getattr(error, "exit_code", None)
    if isinstance(error, CometError):
        if isinstance(code, int):
            return code
        return REFUSED if isinstance(error, SettingsError) else FAILED
    if _extra_for(error) or (isinstance(error, UnicodeEncodeError) and not _are_text(words)):
        return REFUSED
    return FAILED if isinstance(error, OSError) else None


def _are_text(words: Sequence[str]) -> bool:
    """Return False if a word has bytes that Python could not decode."""
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        return False
    return True


def _extra_for(error: Exception) -> str:
    """Return the extra that installs the module of a failed import; "" for any other error."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return _EXTRAS.get((name or "").partition(".")[0], "")


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_for(error)):
        return f"{error.name} is not installed: pip install 'cometmq[{extra}]'"
    if isinstance(error, UnicodeEncodeError):
        return "a word of the command is not UTF-8: names on the wire are"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
