"""``cometmq start``, ``cometmq namesrv``, ``cometmq broker``: servers in this process.

    cometmq start [--store DIR] [--namesrv-port N] [--broker-port N] [--bind HOST] [--set K=V ...]
                  [--dashboard]
    cometmq namesrv [-p PORT] [--bind HOST] [-c FILE] [--set K=V ...]
    cometmq broker [-c FILE] [-n HOST:PORT;...] [--set K=V ...]

With ``--check`` or ``--print-config`` they check or print their settings, and exit.

Each prints exactly one line on standard output, once it serves and the broker is registered with a
name server (a broker without name servers does not wait for registration):

    ready namesrv=127.0.0.1:9876 broker=127.0.0.1:10911

``namesrv`` and ``broker`` print only their own address. A server with an HTTP port adds
``metrics=127.0.0.1:5557``; ``--dashboard`` adds the URL of the page. The precedence of settings is,
from low to high: environment, file, ``--set``, option.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.cli import logs, serve
from cometmq.cli.configuration import (
    Configured,
    Given,
    check,
    configured_broker,
    configured_namesrv,
    ports_of,
    print_config,
)
from cometmq.cli.node import (
    LOG_FILE_BYTES,
    log_file_bytes,
    monitoring,
    node_config,
    running_broker,
    running_namesrv,
    running_node,
)
from cometmq.cli.parser import Parser
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError, SettingsError
from cometmq.net.server import reserve

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
DASHBOARD_PORT: Final = 9880
REGISTERED_POLL_MS: Final = 50
EXAMPLES: Final = {
    "start": ("cometmq start --store data", "cometmq start --namesrv-port 0 --broker-port 0"),
    "namesrv": ("cometmq namesrv -p 9876", "cometmq namesrv --bind 10.0.0.1 --check"),
    "broker": (
        "cometmq broker -c broker.conf -n '10.0.0.1:9876;10.0.0.2:9876'",
        "cometmq broker -c broker.conf --print-config",
    ),
}
#: Settings of a name server or broker, each with the option that sets it.
OPTIONS: Final = (("listenPort", "port"), ("namesrvAddr", "namesrv"), ("bindAddress", "bind"))

log = logging.getLogger(__name__)


def main(words: Sequence[str]) -> int:
    """Run the server command in ``words`` and return the exit code."""
    options, unknown = build_parser().parse_known_args(words)
    if unknown:
        parser_of(options.command).error(f"unrecognized arguments: {' '.join(unknown)}")
    only_reports = options.print_config or options.check
    level, path = options.log_level, options.log_file
    if only_reports:
        level, path = "error", None
    given = Given()
    try:
        logs.configure(level, form=options.log_format, path=path)
        gather(given, options)
        prepared: Prepared = options.prepare(options, given)
        if only_reports:
            return _report(options, prepared, given)
    except SettingsError as error:
        return serve.refuse(options.command, *given.located(error))
    except CometError as error:
        return serve.refuse(options.command, str(error))
    except OSError as error:
        return serve.refuse(options.command, serve.explain(error))
    ports = {port: setting for each in prepared.parts() for port, setting in ports_of(each).items()}
    return serve.run(
        options.command,
        prepared.run,
        watch_input=options.stop_with_input,
        ports=ports,
        on_hangup=None if options.log_file is None else logs.reopen,
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A server that is ready to start.

    ``run`` runs it. ``parts`` returns the configuration of each server in it: a node has two.
    """

    run: serve.Main
    parts: Callable[[], list[Configured]]
    notices: Sequence[str] = ()


def _report(options: argparse.Namespace, prepared: Prepared, given: Given) -> int:
    """Print what ``--print-config`` and ``--check`` ask for; return the exit code."""
    parts = prepared.parts()
    problems: list[str] = []
    for each in parts:
        if options.print_config:
            print("\n".join(print_config(each, given, prepared.notices)))
        if options.check:
            problems += check(each, _try_port)
    if problems:
        return serve.refuse(options.command, *problems)
    if options.check:
        for notice in prepared.notices:
            print(f"notice: {notice}", file=sys.stderr)
        print(f"ok: {' and '.join(each.server for each in parts)} can start", file=sys.stderr)
    return serve.DONE


def _try_port(host: str, port: int, setting: str) -> None:
    """Bind a port and free it again. Raise SettingsError if that cannot be done."""
    try:
        reserve(host, port).close()
    except OSError as error:
        raise SettingsError(setting, serve.explain(error)) from None


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the three commands."""
    parser = argparse.ArgumentParser(prog="cometmq", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)

    start = _command(commands, "start", "a name server and a broker in one process")
    start.add_argument(
        "--store", type=Path, default=Path("cometmq-store"), metavar="DIR", help="Store directory."
    )
    start.add_argument(
        "--namesrv-port",
        type=_port,
        default=NAMESRV_PORT,
        metavar="N",
        help="Port of the name server; 0: a free one.",
    )
    start.add_argument(
        "--broker-port",
        type=_port,
        default=BROKER_PORT,
        metavar="N",
        help="Port of the broker; 0: a free one.",
    )
    start.add_argument(
        "--dashboard",
        action="store_true",
        help="Also serve the web page of the node, in a child process; it only shows.",
    )
    start.add_argument(
        "--dashboard-port",
        type=_port,
        default=DASHBOARD_PORT,
        metavar="N",
        help="Port of the web page; 0: a free one.",
    )
    start.set_defaults(prepare=_prepare_start)

    namesrv = _command(commands, "namesrv", "a name server")
    namesrv.add_argument(
        "-p",
        "--port",
        type=_port,
        default=None,
        metavar="N",
        help="Port to listen on; 0: a free one.",
    )
    namesrv.set_defaults(prepare=_prepare_namesrv)

    broker = _command(commands, "broker", "a broker")
    broker.add_argument(
        "-n", "--namesrv", default=None, metavar="HOST:PORT[;HOST:PORT...]", help="Name servers."
    )
    broker.set_defaults(prepare=_prepare_broker)

    for command in (namesrv, broker):
        command.add_argument(
            "-c", "--config", type=Path, default=None, metavar="FILE", help="A property file."
        )
    return parser


def parser_of(command: str) -> Parser:
    """Return the parser of one of the commands."""
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: Parser = action.choices[command]
            return found
    raise AssertionError("the servers have commands")


def _command(commands: argparse._SubParsersAction[Parser], name: str, what: str) -> Parser:
    command = commands.add_parser(
        name,
        description=f"Run {what} until SIGTERM or SIGINT.",
        examples=EXAMPLES[name],
        color=False,
    )
    command.add_argument("--bind", default=None, metavar="HOST", help="The address to listen on.")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="KEY=VALUE",
        help="A setting with its name in RocketMQ; may be given several times.",
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="Say whether the server could start with these settings, and exit: 0 or 2.",
    )
    command.add_argument(
        "--print-config",
        action="store_true",
        help="Print all settings, and where those that are not defaults come from, and exit.",
    )
    command.add_argument(
        "--stop-with-input",
        action="store_true",
        help="Stop when standard input is closed, for example with the parent process.",
    )
    command.add_argument(
        "--log-level", choices=logs.LEVELS, default="info", help="Least level to log."
    )
    command.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        default="text",
        help="Text with key=value pairs, a JSON object a line, or lines for journald.",
    )
    command.add_argument(
        "--log-file",
        type=Path,
        default=None,
        metavar="FILE",
        help="Append the log to a file, which is opened again on SIGHUP; otherwise standard error.",
    )
    return command


def _port(text: str) -> int:
    """Parse a port number; 0 picks a free port."""
    if text.isdecimal() and int(text) <= 65_535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535; 0 chooses a free one)")


def gather(given: Given, options: argparse.Namespace) -> None:
    """Add the settings of the environment, the file, ``--set`` and the options, in this order.

    Raise SettingsError for an invalid line or word, OSError for an unreadable file.
    """
    if options.command == "broker":
        given.add_environment(os.environ)
    path: Path | None = getattr(options, "config", None)
    if path is not None:
        given.add_file(path)
    given.add_pairs(options.settings)
    for name, option in OPTIONS:
        value = getattr(options, option, None)
        if value is not None and options.command != "start":
            given.add(name, str(value), f"--{option}")


def _prepare_start(options: argparse.Namespace, given: Given) -> Prepared:
    if not given.source(LOG_FILE_BYTES):
        given.add(LOG_FILE_BYTES, *log_file_bytes(options.store, given.values))
    config = node_config(
        options.store,
        given.values,
        namesrv_port=options.namesrv_port,
        broker_port=options.broker_port,
        bind=options.bind or "",
    )

    if options.dashboard:
        from cometmq.cli.page import require_packages

        require_packages()

    async def run(lifetime: serve.Lifetime) -> None:
        async with (
            running_node(config, SystemClock(), lifetime.end) as node,
            AsyncExitStack() as pages,
        ):
            await _until_registered(lifetime, node.is_registered, [node.namesrv])
            if not lifetime.is_ending:
                shown = _monitoring(node.monitoring)
                line = f"ready namesrv={node.namesrv} broker={node.broker}{shown}"
                if options.dashboard:
                    from cometmq.cli.page import running_page

                    page = running_page(node.namesrv, options.dashboard_port, config.broker)
                    line += f" dashboard={await pages.enter_async_context(page)}"
                lifetime.announce(line)
            await lifetime.wait()

    def parts() -> list[Configured]:
        broker = configured_broker(config.broker, config.store)
        return [configured_namesrv(config.namesrv), broker]

    return Prepared(run, parts, config.notices)


def _prepare_namesrv(_options: argparse.Namespace, given: Given) -> Prepared:
    from cometmq.namesrv.config import load

    config, notices = load(given.values)
    notices = given.repeated() + notices

    async def run(lifetime: serve.Lifetime) -> None:
        clock = SystemClock()
        async with (
            monitoring(config, config.bind_address, clock) as port,
            running_namesrv(config, clock, tuple(notices), port=port) as address,
        ):
            lifetime.announce(f"ready namesrv={address}{_monitoring(port.address)}")
            await lifetime.wait()

    return Prepared(run, lambda: [configured_namesrv(config)], notices)


def _prepare_broker(_options: argparse.Namespace, given: Given) -> Prepared:
    from cometmq.broker.config import load

    broker, store, notices = load(given.values)
    notices = given.repeated() + notices

    async def run(lifetime: serve.Lifetime) -> None:
        clock = SystemClock()
        async with (
            monitoring(broker, broker.bind_address, clock) as port,
            running_broker(
                broker, store, clock, tuple(notices), lifetime.end, port=port
            ) as running,
        ):
            asked = broker.name_servers or [each for each in [broker.address_server] if each]
            await _until_registered(lifetime, lambda: bool(running.registered_with()), asked)
            if not lifetime.is_ending:
                lifetime.announce(f"ready broker={running.address}{_monitoring(port.address)}")
            await lifetime.wait()

    return Prepared(run, lambda: [configured_broker(broker, store)], notices)


def _monitoring(address: str) -> str:
    """Return the part of a ready line about the HTTP port, "" if there is none."""
    return f" metrics={address}" if address else ""


async def _until_registered(
    lifetime: serve.Lifetime, is_registered: Callable[[], bool], name_servers: Sequence[str]
) -> None:
    """Wait until the broker is registered or has to stop; return at once without name servers.

    Meanwhile the broker serves clients that know its address, and keeps trying all name servers.
    """
    if not name_servers or is_registered():
        return
    lifetime.serve()
    log.warning(
        "waits_for_name_server name_servers=%s text=%r",
        ";".join(name_servers),
        "the broker is not registered yet; it serves, and keeps trying until it is registered",
    )
    clock = SystemClock()
    while not lifetime.is_ending and not is_registered():
        await clock.sleep_ms(REGISTERED_POLL_MS)
