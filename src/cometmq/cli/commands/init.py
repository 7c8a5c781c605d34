"""``cometmq init``: commented property files for a broker and a name server.

A file describes every setting of its server. The settings that an installation usually chooses come
first. Those that differ from the default, or must agree between servers, are set. All other lines
are comments: remove the ``#`` to change a setting.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cometmq.cli.command import Noun
from cometmq.cli.parser import Argument, Option
from cometmq.cli.render import Result
from cometmq.core.errors import SettingsError
from cometmq.core.settings import OURS, Declaration, declarations, to_properties, to_wire_name

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.namesrv.config import NamesrvConfig
    from cometmq.store.config import StoreConfig

BROKER_FILE: Final = "broker.conf"
NAMESRV_FILE: Final = "namesrv.conf"
WIDTH: Final = 100

#: Settings that come first, in this order.
_FIRST: Final[tuple[str, ...]] = (
    "brokerClusterName", "brokerName", "brokerId", "brokerRole", "namesrvAddr", "bindAddress",
    "brokerIP1", "listenPort", "haListenPort", "storePathRootDir", "kvConfigPath", "flushDiskType",
    "fileReservedTime", "deleteWhen", "remoteAdminEnable", "aclEnable", "autoCreateTopicEnable",
)  # fmt: skip
#: Further sections of a file: the title, and the prefixes of the keys in it.
_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Copies on other brokers": ("ha", "slave", "inSync", "maxHa", "taken"),
    "TLS": ("tls", "useTls", "useTLS"),
}

init = Noun("init", "Write commented configuration files for a broker and a name server.")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A configuration file, its number of settings, and how many of them are set."""

    path: str
    server: str
    settings: int
    active: int


@init.command("", "init", "init /etc/cometmq --store /var/lib/cometmq", does="made")
def write_files(
    directory: Annotated[Path, Argument("DIR", "Folder of the files.")] = Path(),
    broker: Annotated[bool, Option("--broker", help="Only broker.conf.")] = False,
    namesrv: Annotated[bool, Option("--namesrv", help="Only namesrv.conf.")] = False,
    store: Annotated[
        Path, Option("--store", metavar="DIR", help="Folder that the broker keeps its files in.")
    ] = Path("store"),
) -> Result[WrittenFile]:
    """Write broker.conf and namesrv.conf, with every setting described.

    No file is overwritten. The broker of broker.conf registers with the name server of
    namesrv.conf. Both accept connections from this machine only, until you change bindAddress.
    """
    from cometmq.broker.config import BrokerConfig
    from cometmq.namesrv.config import NamesrvConfig
    from cometmq.store.config import StoreConfig

    home = store.absolute()
    both = broker == namesrv
    texts: dict[str, tuple[str, str]] = {}
    if namesrv or both:
        active = {
            "bindAddress": "127.0.0.1",
            "listenPort": "9876",
            "kvConfigPath": str(home / "namesrv" / "kvConfig.json"),
        }
        texts[NAMESRV_FILE] = ("name server", file_text("name server", active, NamesrvConfig()))
    if broker or both:
        active = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "namesrvAddr": "127.0.0.1:9876",
            "bindAddress": "127.0.0.1",
            "listenPort": "10911",
            "storePathRootDir": str(home),
        }
        texts[BROKER_FILE] = ("broker", file_text("broker", active, BrokerConfig(), StoreConfig()))
    for name in texts:
        if (directory / name).exists():
            raise SettingsError(
                "DIR",
                f"{directory / name} exists; it is not overwritten: choose another folder or "
                "move it",
            )
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for name, (server, text) in texts.items():
        path = directory / name
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        lines = text.splitlines()
        count = sum(1 for line in lines if "=" in line and not line.startswith("# "))
        active_count = sum(1 for line in lines if line and not line.startswith("#"))
        made.append(WrittenFile(str(path), server, count, active_count))
    words = {BROKER_FILE: "broker", NAMESRV_FILE: "namesrv"}
    notes = [f"cometmq {words[name]} -c {directory / name} --check" for name in texts]
    return Result(made, ("Check after each change:", *(f"    {note}" for note in notes)))


def file_text(
    server: str, active: Mapping[str, str], *parts: BrokerConfig | StoreConfig | NamesrvConfig
) -> str:
    """Return a property file with all settings of ``parts``, of which those in ``active`` are set.

    A setting that several parts have is in the file once.
    """
    declared: dict[str, Declaration] = {}
    defaults: dict[str, str] = {}
    for part in parts:
        values = to_properties(part)
        for name, declaration in declarations(type(part)).items():
            key = to_wire_name(name)
            if key not in declared:
                declared[key], defaults[key] = declaration, values[key]
    lines = [
        f"# Settings of a CometMQ {server}.",
        "#",
        "# A line that begins with # and a key shows the default: remove the # to change it.",
        "# `cometmq config explain KEY` describes a setting, --print-config prints what is in",
        "# force, and --check says whether the server can start with this file.",
    ]
    for title, keys in _sections(list(declared)):
        lines += ["", f"# ---- {title}"]
        for key in keys:
            lines += ["", *comment(declared[key])]
            lines.append(f"{key}={active[key]}" if key in active else f"#{key}={defaults[key]}")
    return "\n".join(lines) + "\n"


def _sections(keys: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the titles of the sections, and the keys of each."""
    first = [key for key in _FIRST if key in keys]
    left = [key for key in keys if key not in first]
    yield "What an installation usually chooses", first
    later: list[tuple[str, list[str]]] = []
    for title, prefixes in _SECTIONS.items():
        found = [key for key in left if key.startswith(prefixes)]
        left = [key for key in left if key not in found]
        later.append((title, found))
    yield "All others", left
    yield from ((title, found) for title, found in later if found)


def comment(declared: Declaration) -> list[str]:
    """Return the lines that describe a setting."""
    meaning = declared.meaning[:1].upper() + declared.meaning[1:]
    facts = [f"{meaning}."]
    span = declared.range_text() or (f"in {declared.unit}" if declared.unit else "")
    if span:
        facts.append(f"{span[:1].upper()}{span[1:]}.")
    if declared.live:
        facts.append("May change while the server runs.")
    if declared.rocketmq:
        is_ours = declared.rocketmq == OURS
        facts.append(
            "RocketMQ has no such setting." if is_ours else f"RocketMQ: {declared.rocketmq}."
        )
    if declared.see:
        facts.append(f"See docs/{declared.see}.")
    return textwrap.wrap(
        " ".join(facts),
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
