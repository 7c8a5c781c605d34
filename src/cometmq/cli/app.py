"""Typer application with all commands. For the servers it has only entries that pass them on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final

import typer

from cometmq.cli import logs, servers
from cometmq.cli.commands import (
    bench,
    broker,
    group,
    message,
    migrate,
    outbox,
    spark,
    store,
    topic,
)
from cometmq.core.errors import CometError, SettingsError
from cometmq.speedups import DESCRIPTION

FAILED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130
#: Commands of two words, because the first word alone runs a server.
BROKER_COMMANDS: Final[Mapping[str, Callable[..., None]]] = {
    "broker promote": broker.promote_command,
    "broker drain": broker.drain_command,
    "broker undrain": broker.undrain_command,
}

app = typer.Typer(
    name="cometmq",
    help="Apache RocketMQ rebuilt in Python: broker, name server, client and tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(store.app, name="store")
app.add_typer(outbox.app, name="outbox")
app.add_typer(migrate.app, name="migrate")
app.add_typer(spark.app, name="spark")
app.command("send")(message.send)
app.command("consume")(message.consume)
app.command("bench")(bench.bench)
for _words, _command in BROKER_COMMANDS.items():
    app.command(_words)(_command)

# Servers parse their own arguments. Usually cli/main.py starts them without this module. These
# entries are for the help, and for a server that follows an option such as --log-level.
_PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cometmq {version('cometmq')}, core: {DESCRIPTION}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and the core in use, and exit.",
        is_eager=True,
        callback=_print_version,
    ),
    log_level: str = typer.Option(
        "warning", help="Least level to log: debug, info, warning, error."
    ),
) -> None:
    if log_level not in logs.LEVELS:
        raise typer.BadParameter(f"{log_level!r} is not one of {', '.join(logs.LEVELS)}")
    logs.configure(log_level)


def _add_server(name: str, text: str) -> None:
    @app.command(name, help=text, context_settings=_PASS_ON, add_help_option=False)
    def run(context: typer.Context) -> None:
        raise typer.Exit(servers.main([name, *context.args]))


_add_server("start", "Run a name server and a broker in one process.")
_add_server("namesrv", "Run a name server.")
_add_server("broker", "Run a broker.")


def main(words: Sequence[str]) -> int:
    """Run the command line ``words`` (without the program name) and return the exit code."""
    try:
        first = " ".join(words[:2])
        if first in BROKER_COMMANDS:
            words = [first, *words[2:]]
        app(args=list(words), prog_name="cometmq")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else FAILED if done.code else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except CometError as error:
        print(f"cometmq: {error}", file=sys.stderr)
        return REFUSED if isinstance(error, SettingsError) else FAILED
    return 0
