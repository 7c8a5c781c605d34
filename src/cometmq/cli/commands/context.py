"""``cometmq context``, ``completion`` and ``schema``: commands that need no cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from cometmq.cli import contexts
from cometmq.cli.asking import secret_from
from cometmq.cli.command import Noun, Yes, confirm
from cometmq.cli.contexts import Connection, Contexts
from cometmq.cli.parser import Argument, Option
from cometmq.core.errors import SettingsError

context = Noun("context", "Named clusters: their addresses, credentials and TLS.")
completion = Noun("completion", "Completion of words in a shell.")
schema = Noun("schema", "JSON schema of the output of all commands.")

HIDDEN = "********"

Name = Annotated[str, Argument("NAME")]
Namesrv = Annotated[str, Option("--namesrv", "-n", metavar="HOST:PORT", help="Name servers.")]
AccessKey = Annotated[str, Option(help="Access key of an account.")]
SecretFile = Annotated[
    str,
    Option(
        "--secret-file",
        metavar="FILE",
        help="File with the secret key; '-' reads it from standard input.",
    ),
]
Tls = Annotated[
    Literal["true", "false", ""], Option("--tls", metavar="true|false", help="Connect with TLS.")
]
TlsCa = Annotated[str, Option("--tls-ca", metavar="FILE", help="Certificates to trust.")]
TlsCert = Annotated[str, Option("--tls-cert", metavar="FILE", help="Certificate of this client.")]
TlsKey = Annotated[str, Option("--tls-key", metavar="FILE", help="Its private key.")]


@dataclass(frozen=True, slots=True)
class ContextRow:
    """A context; ``secret_key`` is hidden."""

    name: str
    current: bool
    namesrv: str | None
    access_key: str | None
    secret_key: str | None
    tls: bool | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_verify: bool
    tls_check_host: bool
    credentials: str | None

    WIDE: ClassVar[tuple[str, ...]] = (
        "secret_key",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "tls_verify",
        "credentials",
    )


def _row(name: str, found: Connection, current: str) -> ContextRow:
    return ContextRow(
        name, name == current, found.namesrv or None, found.access_key or None,
        HIDDEN if found.secret_key else None, found.tls == "true" if found.tls else None,
        found.tls_ca or None, found.tls_cert or None, found.tls_key or None,
        found.tls_verify != "false", found.tls_check_host != "false", found.credentials or None,
    )  # fmt: skip


@context.command(
    "create",
    "context create prod -n 10.0.0.1:9876;10.0.0.2:9876 --access-key ops --secret-file -",
    "context create local -n 127.0.0.1:9876",
    does="saved",
)
def create(
    name: Name,
    namesrv: Namesrv = "",
    access_key: AccessKey = "",
    secret_file: SecretFile = "",
    credentials: Annotated[
        str, Option("--credentials", metavar="FILE", help="File with accessKey and secretKey.")
    ] = "",
    tls: Tls = "",
    tls_verify: Annotated[
        Literal["true", "false", ""],
        Option("--tls-verify", metavar="true|false", help="Check certificates of servers."),
    ] = "",
    tls_check_host: Annotated[
        Literal["true", "false", ""],
        Option("--tls-check-host", metavar="true|false", help="Check that they name the host."),
    ] = "",
    tls_ca: TlsCa = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    update: Annotated[bool, Option(help="Change a context; what is not named stays.")] = False,
) -> ContextRow:
    """Save the address of a cluster under a name. The first context becomes the current one."""
    contexts.check_name(name)
    known = contexts.load()
    if (name in known.named) != update:
        hint = "there is none" if update else "it exists already; --update changes it"
        raise SettingsError("context", f"{name!r}: {hint}")
    changes = Connection(
        namesrv, access_key, secret_from(secret_file), "", _absolute(credentials), tls,
        _absolute(tls_ca), _absolute(tls_cert), _absolute(tls_key), "", tls_verify, tls_check_host,
    )  # fmt: skip
    made = known.named.get(name, Connection()).changed(changes)
    if not made.namesrv:
        raise SettingsError("--namesrv", "name at least one name server")
    changed = Contexts(known.current or name, {**known.named, name: made})
    contexts.save(changed)
    return _row(name, made, changed.current)


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


@context.command("use", "context use prod", does="using")
def use(name: Name) -> ContextRow:
    """Make a context the current one: commands use it unless told otherwise."""
    known = contexts.load()
    found = known.get(name)
    contexts.save(replace(known, current=name))
    return _row(name, found, name)


@context.command("list", "context list")
def list_() -> list[ContextRow]:
    """List the contexts; secrets are hidden."""
    known = contexts.load()
    return [_row(name, each, known.current) for name, each in sorted(known.named.items())]


@context.command("show", "context show prod")
def show(name: Annotated[str, Argument("NAME", "By default the current one.")] = "") -> ContextRow:
    """Show a context; secrets are hidden."""
    known = contexts.load()
    if not (name or known.current):
        raise SettingsError("context", "there is no current context: cometmq context use NAME")
    return _row(name or known.current, known.get(name or known.current), known.current)


@context.command("rename", "context rename prod production", does="renamed")
def rename(name: Name, new: Annotated[str, Argument("NEW")]) -> ContextRow:
    """Give a context another name."""
    contexts.check_name(new)
    known = contexts.load()
    found = known.get(name)
    if new in known.named:
        raise SettingsError("context", f"{new!r} exists already")
    named = {new if key == name else key: each for key, each in known.named.items()}
    current = new if known.current == name else known.current
    contexts.save(Contexts(current, named))
    return _row(new, found, current)


@context.command("delete", "context delete prod --yes", does="deleted")
def delete(name: Name, yes: Yes = False) -> ContextRow:
    """Delete a context, with its credentials."""
    known = contexts.load()
    found = known.get(name)
    confirm(f"Delete context {name}?", yes)
    named = {key: each for key, each in known.named.items() if key != name}
    contexts.save(Contexts("" if known.current == name else known.current, named))
    return _row(name, found, "")


@completion.command(
    "", "completion bash > /etc/bash_completion.d/cometmq", "completion zsh", "completion fish"
)
def print_completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="The shell.")],
) -> None:
    """Print a script that completes the words of cometmq in a shell.

    For one session: source <(cometmq completion bash). For all sessions, write it where the shell
    looks: /etc/bash_completion.d/cometmq, _cometmq in a directory of zsh's fpath, or
    ~/.config/fish/completions/cometmq.fish.
    """
    from cometmq.cli.completion import SCRIPTS

    print(SCRIPTS[shell], end="")


@schema.command("", "schema > cometmq.schema.json")
def print_schema() -> None:
    """Print the JSON schema of what commands print with --output json."""
    print(json.dumps(whole_schema(), indent=2))


def whole_schema() -> dict[str, Any]:
    """Return the JSON schema of the output of all commands."""
    from cometmq.cli.nouns import ENTRIES, load
    from cometmq.cli.render import schema as made

    types: dict[str, Any] = {}
    for word, entry in ENTRIES.items():
        if not entry.module:
            continue
        for command in load(word).commands.values():
            if command.item_type is not None:
                types[command.name] = command.item_type
    return made(types)
