"""Writes docs/api/*.md, the reference of the Python API, from signatures and docstrings.

Run `python -m scripts.api_page` after a change of either; a test fails if a page is old.
Sources are parsed, not imported, so that no extra needs to be installed.
"""

import ast
import inspect
import os.path
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "cometmq"
FOLDER = ROOT / "docs" / "api"

LINE_MAX = 88
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Page(NamedTuple):
    """A page: its title, what it says first, and its names, each `module name` or `module name as
    shown`."""

    title: str
    intro: str
    names: tuple[str, ...]


_CLIENT = (
    "client/client Client",
    "client/config ClientConfig",
    *("message/model Message", "message/model MessageQueue"),
    *("client/sendrequests SendResult", "client/sendrequests SendStatus"),
    *("client/transactions Transaction", "client/consumer/pushconsumer Subscription"),
    *("client/consumer/received ReceivedMessage", "client/consumer/pullconsumer PullConsumer"),
    *("message/model MessageView", "message/model StoredMessage", "client/consumer/options Sql"),
    *("client/typed TypedTopic", "client/typed TypedMessage", "client/typed TypedSubscription"),
    "client/serializers Serializer",
    *("client/status ClientStatus", "client/status SubscriptionStatus"),
    *("client/status QueueProgress", "client/outages OutageEvent"),
    *("client/consumer/allocate ByConfig", "client/consumer/allocate ConsistentHash"),
    *("client/consumer/allocate MachineRoom", "client/consumer/allocate MachineRoomNearby"),
    *("client/hooks SendAttempt", "client/hooks ConsumeAttempt"),
    *("protocol/acl Credentials", "net/outgoing TlsOptions"),
    *("outbox/sqlite SqliteOutbox", "outbox/postgres PostgresOutbox"),
    *("outbox/relay Relay", "outbox/relay RelaySettings"),
)
_ADMIN = (
    *("admin/api Admin", "admin/groups Groups", "admin/messages Messages"),
    *("admin/deadletters DeadLetters", "admin/servers Servers", "admin/traces Traces"),
    *("admin/health check_health", "admin/health wait_until_healthy"),
    *("admin/health HealthLimits", "admin/health HealthReport", "admin/bundle write_bundle"),
)
_ERRORS = (
    *("CometError", "ClientError", "NotConnected", "RequestTimedOut", "RouteNotFound", "NotFound"),
    *("BrokerRefused", "AlreadyInUse", "MessageIllegal", "WrongArgument", "NotOpen"),
    *("SettingsError", "UndecodableMessage"),
)

#: Pages by the names of their files.
PAGES = {
    "client.md": Page(
        "Client",
        "The names of `cometmq` for programs with an event loop. [Send a message]"
        "(../how-to/send.md) and [Receive messages](../how-to/receive.md) show how they are used.",
        _CLIENT,
    ),
    "blocking.md": Page(
        "Blocking client",
        "The client for programs without an event loop: `cometmq.BlockingClient`. Arguments are "
        "those of the [client](client.md).",
        (
            "client/blocking Client BlockingClient",
            "client/blocking Subscription",
            *("client/blocking PullConsumer", "client/blocking Puller"),
        ),
    ),
    "admin.md": Page(
        "Administration",
        "`cometmq.Admin` and the classes of `cometmq.admin`; [Administration from Python]"
        "(../administration.md) shows how they are used.",
        _ADMIN,
    ),
    "errors.md": Page(
        "Errors",
        "The errors that calls raise, all of them in `cometmq`.",
        (
            *(f"core/errors {name}" for name in _ERRORS),
            *("filter/sqltext BadFilter", "outbox/row OutboxBusy"),
        ),
    ),
    "testing.md": Page(
        "Test fixtures",
        "The pytest fixtures and the clusters of `cometmq.testing`; [Test a program]"
        "(../testing.md) shows how they are used.",
        (
            *("testing/plugin cometmq_cluster", "testing/plugin cometmq_session_cluster"),
            *("testing/cluster Cluster", "testing/cluster running_cluster"),
            *("testing/cluster cluster_in_thread", "testing/cluster ProcessCluster"),
            "testing/postgres running_postgres",
        ),
    ),
}


def text_of(docstring: str | None) -> str:
    """Return a docstring as Markdown: one pair of backticks round code, no roles."""
    text = inspect.cleandoc(docstring or "")
    text = re.sub(r":(?:meth|attr|class|func|data):`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def parameters(arguments: ast.arguments, *, bound: bool) -> list[str]:
    """Return the parameters of a signature, each as text, without `self`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    found = [_parameter(each, value) for each, value in zip(positional, defaults, strict=True)]
    if bound:
        del found[0]
    if arguments.posonlyargs:
        found.insert(len(arguments.posonlyargs) - bound, "/")
    if arguments.vararg:
        found.append("*" + _parameter(arguments.vararg, None))
    elif arguments.kwonlyargs:
        found.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [_parameter(each, value) for each, value in pairs]
    if arguments.kwarg:
        found.append("**" + _parameter(arguments.kwarg, None))
    return found


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation:
        text += f": {ast.unparse(argument.annotation)}"
    if default is not None:
        text += (" = " if argument.annotation else "=") + ast.unparse(default)
    return text


def signature(name: str, items: list[str], returns: str = "", prefix: str = "") -> str:
    """Return a block of code with a signature, on several lines if it is long."""
    end = f" -> {returns}" if returns and returns != "None" else ""
    line = f"{prefix}{name}({', '.join(items)}){end}"
    if len(line) > LINE_MAX:
        body = "".join(f"    {item},\n" for item in items)
        line = f"{prefix}{name}(\n{body}){end}"
    return f"```text\n{line}\n```"


def decorators(node: Function) -> set[str]:
    """Return the last names of a function's decorators."""
    return {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}


def function(node: Function, shown: str, level: str, *, bound: bool) -> Iterator[str]:
    """Yield the parts of a function's or a method's entry."""
    marks = decorators(node)
    yield f"{level} {shown}"
    returns = ast.unparse(node.returns) if node.returns else ""
    if marks & {"property", "cached_property"}:
        yield f"```text\n{shown}: {returns}\n```"
    elif "fixture" in marks:
        yield "A pytest fixture."
    else:
        prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
        manager = marks & {"asynccontextmanager", "contextmanager"}
        if manager or "Iterator" in returns:
            prefix = "async with " if "asynccontextmanager" in marks else "with " if manager else ""
            returns = (
                re.sub(r"^(?:Async)?Iterator\[(.*)\]$", r"\1", returns) if manager else returns
            )
        items = parameters(node.args, bound=bound and "staticmethod" not in marks)
        yield signature(shown, items, returns, prefix)
    yield text_of(ast.get_docstring(node, clean=False))


def fields(node: ast.ClassDef, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, each as text and with the comment before it (`#:`)."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
            comment: list[str] = []
            number = item.lineno - 2
            while lines[number].strip().startswith("#:"):
                comment.insert(0, lines[number].strip().removeprefix("#:").strip())
                number -= 1
            yield ast.unparse(item), text_of(" ".join(comment))
        elif isinstance(item, ast.Assign) and "Enum" in map(ast.unparse, node.bases):
            yield ast.unparse(item), ""


def borrowed(node: ast.ClassDef) -> list[str]:
    """Return the methods that a class makes from those of another one, as `send = made(A.send)`."""
    return [
        ast.unparse(item.targets[0])
        for item in node.body
        if isinstance(item, ast.Assign)
        and isinstance(item.value, ast.Call)
        and not ast.unparse(item.targets[0]).startswith("_")
    ]


def class_entry(node: ast.ClassDef, shown: str, lines: list[str]) -> Iterator[str]:
    """Yield the parts of a class's entry: its constructor, fields and public methods."""
    yield f"## {shown}"
    functions = [item for item in node.body if isinstance(item, Function)]
    is_error = any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    for item in functions:
        if item.name == "__init__" and not is_error:
            yield signature(shown, parameters(item.args, bound=True))
    yield text_of(ast.get_docstring(node, clean=False))
    listed = list(fields(node, lines))
    if listed:
        rows = [f"- `{text}`" + (f": {comment}" if comment else "") for text, comment in listed]
        yield "\n".join(rows)
    if same := borrowed(node):
        names = ", ".join(f"`{name}`" for name in same)
        yield f"With the arguments of the asyncio class, and waiting for the result: {names}."
    for item in functions:
        setter = any(ast.unparse(each).endswith(".setter") for each in item.decorator_list)
        if not item.name.startswith("_") and "overload" not in decorators(item) and not setter:
            yield from function(item, item.name, "###", bound=True)


def entry(described: str) -> Iterator[str]:
    """Yield the parts of the entry of one name."""
    module, name, *other = described.split()
    source = (SOURCES / f"{module}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if getattr(node, "name", "") == name:
            shown = other[0] if other else name
            if isinstance(node, ast.ClassDef):
                yield from class_entry(node, shown, source.splitlines())
            elif isinstance(node, Function):
                yield from function(node, shown, "##", bound=False)
            return
    raise AssertionError(f"{module}.py has no {name}")


def page_text(page: Page) -> str:
    """Return a whole page."""
    head = [f"# {page.title}", page.intro, "<!-- written by scripts/api_page.py -->"]
    parts = [*head, *(part for name in page.names for part in entry(name))]
    return "\n\n".join(part for part in parts if part) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, described_page in PAGES.items():
        (FOLDER / file_name).write_text(page_text(described_page), encoding="utf-8")
        print(os.path.relpath(FOLDER / file_name))
