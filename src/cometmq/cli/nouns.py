"""First words of the command line, and the modules that implement them.

A module is imported only when its word is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.cli.command import Noun


@dataclass(frozen=True, slots=True)
class Entry:
    """A first word: the module and the variable of its Noun ("": only a server), and a summary."""

    module: str
    name: str
    summary: str
    is_server: bool = False


def _entry(module: str, name: str, summary: str, *, is_server: bool = False) -> Entry:
    return Entry(f"cometmq.cli.commands.{module}" if module else "", name, summary, is_server)


#: First words by group of the help.
GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "servers": {
        "start": _entry("", "", "Run a name server and a broker in one process.", is_server=True),
        "broker": _entry(
            "broker", "broker", "Run a broker; list, show, configure and promote running ones.",
            is_server=True,
        ),
        "namesrv": _entry(
            "cluster", "namesrv", "Run a name server; show and configure running ones.",
            is_server=True,
        ),
        "init": _entry("init", "init", "Write commented configuration files for both."),
    },
    "a running cluster": {
        "cluster": _entry("cluster", "cluster", "Clusters and their health."),
        "topic": _entry("topic", "topic", "List, show, create and delete topics."),
        "group": _entry("group", "group", "Consumer groups: lag, members, reset."),
        "message": _entry("message", "message", "Send, consume, find and browse messages."),
        "offset": _entry("group", "offset", "Committed offsets of groups."),
        "dlq": _entry("dlq", "dlq", "Dead letters: list, show, send again."),
        "transaction": _entry("dlq", "transaction", "Half messages of transactions."),
        "trace": _entry("dlq", "trace", "The life of a message."),
        "acl": _entry("acl", "acl", "Accounts and white lists of access control."),
        "config": _entry("config", "config", "Explain, show and change settings."),
        "send": _entry("message", "send_noun", "Short for message send."),
        "consume": _entry("message", "consume_noun", "Short for message consume."),
        "bench": _entry("bench", "noun", "Measure sends and pulls."),
        "migrate": _entry("migrate", "app", "Move from a running broker to a new one."),
        "debug": _entry("cluster", "debug", "Write the state of a cluster into a file."),
        "dashboard": _entry("dashboard", "noun", "Serve a web page of the cluster."),
        "context": _entry("context", "context", "Named clusters: addresses, credentials, TLS."),
    },
    "files and applications": {
        "store": _entry("store", "app", "Store directories: info, verify, dump, repair."),
        "tls": _entry("tls", "tls", "A certificate authority: make and issue certificates."),
        "outbox": _entry("outbox", "app", "The outbox of an application."),
        "spark": _entry("spark", "app", "Jobs on Spark."),
    },
    "this program": {
        "completion": _entry("context", "completion", "Print a script that completes words."),
        "schema": _entry("context", "schema", "Print the JSON schema of all output."),
    },
}  # fmt: skip
ENTRIES: Final[Mapping[str, Entry]] = {
    word: entry for group in GROUPS.values() for word, entry in group.items()
}


def load(word: str) -> Noun:
    """Import the noun of a first word."""
    entry = ENTRIES[word]
    noun: Noun = getattr(import_module(entry.module), entry.name)
    return noun
