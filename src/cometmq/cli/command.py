"""Commands by noun and verb, and how a command runs: parse, connect, call, print, repeat.

A command is a function. Its result decides the output:

    list of rows, or one row    printed in the format of --output
    Result                      the same, with notes, or a problem that makes the exit code 1
    an async iterator of rows   printed one by one
    None                        nothing more: the function has printed its output itself

A function whose first parameter is a :class:`Connected` gets an open client, and its command gets
the options that select the cluster. The return annotation defines the JSON schema of the output.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from inspect import Parameter as Signed
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction, signature
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from cometmq.cli import connect, parser, render
from cometmq.cli.asking import interruptible
from cometmq.cli.connect import Connected
from cometmq.cli.parser import REFUSED, Option, Parser, add_parameters, nearest
from cometmq.cli.render import Result
from cometmq.core.errors import CometError

F = TypeVar("F", bound=Callable[..., Any])

FAILED: Final = 1
OUTPUTS: Final = ("table", "wide", "json", "yaml", "ndjson")


class Refused(CometError):
    """The command cannot be done as requested; the exit code is 2."""

    exit_code = REFUSED


class Exit(CometError):
    """Ends a command with an exit code and without a message: its output is already printed."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__("")


Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only print what would be done.")]


def confirm(question: str, yes: bool, *, lasting: bool = True) -> None:
    """Ask for confirmation, unless ``yes``. Raises Refused without it, or without a terminal.

    A ``lasting`` change cannot be undone; any other one can, but may harm clients until then.
    """
    if yes:
        return
    warning = "This cannot be undone" if lasting else "It can be undone"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(f"{question} {warning}: add --yes to do it")
    asked = f"{render.escaped(question)} {warning}. Continue? [y/N] "
    with interruptible():
        print(asked, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise Refused("not confirmed; nothing was changed")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words, the function that it runs, and examples for its help.

    ``does`` is a past participle such as "created"; with it, the command prints a line for each
    item that it changed. ``old`` are former spellings of ``words`` that still work. A ``hidden``
    command is not in the help.
    """

    words: str
    function: Callable[..., Any]
    examples: tuple[str, ...] = ()
    does: str = ""
    old: tuple[str, ...] = ()
    hidden: bool = False
    noun: str = ""

    @property
    def name(self) -> str:
        """The noun and the words, such as "topic list": the name of the command in JSON."""
        return f"{self.noun} {self.words}".strip()

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    @property
    def connects(self) -> bool:
        """True if the function takes an open client."""
        first = next(iter(signature(self.function, eval_str=True).parameters.values()), None)
        return first is not None and first.annotation is Connected

    @property
    def item_type(self) -> Any:
        """Type of the rows; None for a command that prints by itself."""
        returned = signature(self.function, eval_str=True).return_annotation
        if get_origin(returned) in (list, Result, AsyncIterator):
            return get_args(returned)[0]
        return None if returned in (None, Signed.empty) else returned

    @property
    def streams(self) -> bool:
        """True if the function yields its rows one by one."""
        return isasyncgenfunction(self.function)

    def parameters(self) -> list[parser.Parameter]:
        """Return the parameters that the command line sets."""
        return parser.parameters(self.function, skip=1 if self.connects else 0)

    def parser(self, prog: str) -> Parser:
        """Return the parser of its arguments; ``prog`` has the words before ``words``."""
        made = Parser(f"{prog} {self.words}".strip(), _description(self.function), self.examples)
        add_parameters(made, self.parameters())
        if self.connects:
            connect.add_options(made)
        if self.item_type is not None:
            self._add_output(made)
        return made

    def _add_output(self, made: Parser) -> None:
        group = made.add_argument_group("output")
        # A job on Spark has an option --output of its own.
        taken = {name for action in made._actions for name in action.option_strings}
        group.add_argument(
            *(name for name in ("-o", "--output") if name not in taken),
            choices=OUTPUTS, default=None, dest="output_format", metavar="FORMAT",
            help=f"Format of the output: {', '.join(OUTPUTS)}.",
        )  # fmt: skip
        group.add_argument(
            "--json", action="store_const", const="ndjson", dest="output_format",
            help="The same as --output ndjson.",
        )  # fmt: skip
        if not (self.does or self.streams):
            group.add_argument(
                "--watch", type=_seconds, nargs="?", const=2.0, metavar="SECONDS",
                help="Repeat every SECONDS, until interrupted (2 without a number).",
            )  # fmt: skip

    def run(self, prog: str, words: Sequence[str]) -> int:
        """Parse ``words``, run the function, print what it returns; return the exit code.

        Raises CometError, KeyboardInterrupt and OSError.
        """
        options = self.parser(prog).parse_args(words)
        if not logging.getLogger().handlers:
            from cometmq.cli import logs

            # The client retries failed requests, and the command prints the final error: warnings
            # about retries would only hide it.
            logs.configure("error" if self.connects else "warning")
        given = parser.values(options, self.parameters())
        if self.connects:
            return connect.run(self._connected(options, given))
        if iscoroutinefunction(self.function) or self.streams or getattr(options, "watch", None):
            return connect.run(self._call(options, lambda: self.function(**given)))
        return self._print(options, self.function(**given))

    async def _connected(self, options: argparse.Namespace, given: dict[str, Any]) -> int:
        async with connect.connected(options) as opened:
            return await self._call(options, lambda: self.function(opened, **given))

    async def _call(self, options: argparse.Namespace, call: Callable[[], Any]) -> int:
        if self.streams:
            return await self._stream(options, call())
        seconds = getattr(options, "watch", None)
        if seconds is not None:
            return await self._repeat(options, call, seconds)
        made = call()
        return self._print(options, await made if isawaitable(made) else made)

    async def _repeat(
        self, options: argparse.Namespace, call: Callable[[], Any], seconds: float
    ) -> int:
        """Print the result of a call every ``seconds``, until interrupted.

        The error of a later call is printed, and the repetition goes on, because the error may be
        temporary. An error of the first call is raised.
        """
        from cometmq.core.clock import SystemClock

        clock, is_first = SystemClock(), True
        while True:
            problem: CometError | None = None
            found: Any = None
            try:
                made = call()
                found = await made if isawaitable(made) else made
            except CometError as error:
                if is_first:
                    raise
                problem = error
            is_first = False
            render.begin_watch(seconds, clock.wall_ms(), _format(options))
            try:
                self._print(options, found)
            except CometError as error:
                problem = error
            if problem is not None:
                sys.stdout.flush()
                print(f"cometmq {self.noun}: {render.one_line(str(problem))}", file=sys.stderr)
            await clock.sleep_ms(int(seconds * 1000))

    def _print(self, options: argparse.Namespace, found: Any) -> int:
        if found is None or self.item_type is None:
            return 0
        is_one = not isinstance(found, Result | list | tuple)
        result = found if isinstance(found, Result) else Result([found] if is_one else found)
        does = result.does or self.does
        render.show(self.name, result, _format(options), does=does, one=is_one)
        if result.problem:
            raise CometError(result.problem)
        return result.exit_code

    async def _stream(self, options: argparse.Namespace, rows: AsyncIterator[Any]) -> int:
        with render.Stream(self.name, _format(options), does=self.does) as out:
            async for row in rows:
                out.add(row)
        return 0


@dataclass(slots=True)
class Noun:
    """Commands on one kind of thing, such as topics. The command "" is the noun without a verb."""

    name: str
    help: str
    commands: dict[str, Command] = field(default_factory=dict)

    def command(
        self,
        words: str,
        *examples: str,
        does: str = "",
        old: tuple[str, ...] = (),
        hidden: bool = False,
    ) -> Callable[[F], F]:
        """Return a decorator that adds a function as the command ``words``."""

        def add(function: F) -> F:
            shown = tuple(f"cometmq {example}" for example in examples)
            self.commands[words] = Command(words, function, shown, does, old, hidden, self.name)
            return function

        return add

    def find(self, words: Sequence[str]) -> tuple[Command | None, int]:
        """Return the command that ``words`` begin with, and how many of them name it."""
        for count in (2, 1):
            said = " ".join(words[:count])
            for each in self.commands.values():
                if len(words) >= count and (said == each.words or said in each.old):
                    return each, count
        return None, 0

    def run(self, words: Sequence[str]) -> int:
        """Run the command in ``words`` and return its exit code."""
        prog = f"cometmq {self.name}"
        if "" in self.commands:
            return self.commands[""].run(prog, words)
        if not words or words[0] in ("-h", "--help"):
            print(self.help_text())
            return 0 if words else REFUSED
        found, count = self.find(words)
        if found is None:
            known = self.commands if words[0] else ()
            grouped = [name for name in known if name.split()[0] == words[0]]
            more = f": use one of {', '.join(grouped)}" if grouped else nearest(words[0], known)
            raise Refused(f"there is no command {prog} {words[0]}{more}; see {prog} -h")
        return found.run(prog, words[count:])

    def help_text(self) -> str:
        """Return the help: what the noun is, and its commands."""
        rows = [(each.words, each.summary) for each in self.commands.values() if not each.hidden]
        examples = [each.examples[0] for each in self.commands.values() if each.examples][:6]
        text = f"Usage: cometmq {self.name} COMMAND [...]\n\n{self.help}\n\n"
        text += f"commands:\n{columns(rows)}"
        if examples:
            text += "\n\nexamples:\n" + "\n".join(f"  {line}" for line in examples)
        return f"{text}\n\ncometmq {self.name} COMMAND -h shows the options of a command."


def columns(rows: Iterable[tuple[str, str]]) -> str:
    """Return two columns of text, the second folded to the width of the terminal."""
    import textwrap

    found = list(rows)
    width = max((len(name) for name, _ in found), default=0)
    room = min(parser.HELP_WIDTH_MAX, parser.terminal_width()) - width - 4
    lines = []
    for name, text in found:
        first, *others = textwrap.wrap(text, max(20, room)) or [""]
        lines.append(f"  {name.ljust(width)}  {first}".rstrip())
        lines += [" " * (width + 4) + other for other in others]
    return "\n".join(lines)


def _format(options: argparse.Namespace) -> str:
    return options.output_format or "table"


def _description(function: Callable[..., Any]) -> str:
    import textwrap

    first, _, rest = (function.__doc__ or "").strip().partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".rstrip()


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return value
