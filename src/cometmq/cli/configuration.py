"""Settings of a server's command line: their sources, what they mean, and a check before a start.

A setting comes from the environment, a property file, ``--set`` or an option; the later of these
wins. Settings that were changed while a broker ran override all of them. Nothing here changes a
file or starts a server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import CometError, SettingsError
from cometmq.core.javakeys import JAVA_KEYS
from cometmq.core.plural import plural
from cometmq.core.settings import (
    HIDDEN,
    Declaration,
    declarations,
    normalise,
    property_lines,
    to_properties,
    to_wire_name,
    unknown_keys,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.broker.config import BrokerConfig
    from cometmq.namesrv.config import NamesrvConfig
    from cometmq.store.config import StoreConfig

    Config = BrokerConfig | StoreConfig | NamesrvConfig

#: Variables of the environment that RocketMQ reads, with the settings that they stand for.
ENVIRONMENT: Final[Mapping[str, str]] = {
    "NAMESRV_ADDR": "namesrvAddr",
    "ROCKETMQ_HOME": "rocketmqHome",
}


class Given:
    """Settings that were given to a server, the latest of each key, with their sources."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str, str]] = {}
        self._repeated: list[str] = []

    def add(self, key: str, value: str, source: str) -> None:
        """Add a setting; it replaces an earlier one of the same key, in whatever spelling."""
        self._given[normalise(key)] = (key, value, source)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Add the settings of the variables that RocketMQ reads."""
        for name, key in ENVIRONMENT.items():
            if environment.get(name):
                self.add(key, environment[name], f"environment {name}")

    def add_file(self, path: Path) -> None:
        """Add the settings of a property file.

        Raise SettingsError for a line that is no setting, OSError for an unreadable file.
        """
        # A file that an editor of Windows wrote begins with a byte order mark.
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        lines: dict[str, int] = {}
        try:
            found = property_lines(text)
        except SettingsError as error:
            raise SettingsError(error.key, error.problem, where=str(path)) from None
        for number, key, value in found:
            name = normalise(key)
            if name in lines:
                self._repeated.append(
                    f"{path} sets {key} in line {lines[name]} and in line {number}: the last counts"
                )
            lines[name] = number
            self.add(key, value, f"{path}:{number}")

    def add_pairs(self, pairs: Sequence[str]) -> None:
        """Add the ``key=value`` words of ``--set``. Raise SettingsError for any other word."""
        for key, value in parse_settings(pairs).items():
            self.add(key, value, "--set")

    @property
    def values(self) -> dict[str, str]:
        """The settings by key, as they were spelled."""
        return {key: value for key, value, _ in self._given.values()}

    def source(self, key: str) -> str:
        """Return where a setting came from, such as ``broker.conf:12``; "" if it was not given."""
        return self._given.get(normalise(key), ("", "", ""))[2]

    def repeated(self) -> list[str]:
        """Return a notice for each key that a file sets twice."""
        return list(self._repeated)

    def located(self, error: SettingsError) -> list[str]:
        """Return a line for each problem of ``error``, with where its setting came from."""
        return [str(each) for each in self._located(error)]

    def _located(self, error: SettingsError) -> Iterator[SettingsError]:
        for each in (error, *error.more):
            where = each.where or self.source(each.key)
            yield SettingsError(each.key, each.problem, where=where)


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``key=value`` words into a dict. Raise SettingsError for any other word."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SettingsError(pair, "is not of the form key=value")
        values[key.strip()] = value.strip()
    return values


# ------------------------------------------------------------------------------------------ explain


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a key means to one kind of server.

    ``effect`` is False for a key of RocketMQ that is ignored or refused; then ``rocketmq`` is its
    meaning there, and ``meaning`` says why. ``see`` is a page of the documentation.
    """

    key: str
    server: str
    meaning: str
    effect: bool = True
    default: str = ""
    unit: str = ""
    range: str = ""
    live: bool = False
    rocketmq: str = ""
    see: str = ""


def explain(key: str) -> list[Explanation]:
    """Return what a key means: one explanation for each kind of server that has it.

    Raise SettingsError for an unknown key, with the nearest known ones.
    """
    from cometmq.broker.config import BrokerConfig
    from cometmq.namesrv.config import NamesrvConfig
    from cometmq.store.config import StoreConfig

    wanted, known = normalise(key), list[str]()
    found: list[Explanation] = []
    configs: tuple[tuple[str, Config], ...] = (
        ("broker", BrokerConfig()),
        ("broker", StoreConfig()),
        ("name server", NamesrvConfig()),
    )
    for server, config in configs:
        values = to_properties(config)
        known += values
        for name, declared in declarations(type(config)).items():
            if normalise(name) == wanted and server not in [each.server for each in found]:
                wire_name = to_wire_name(name)
                found.append(_explanation(wire_name, server, values[wire_name], declared))
    java = JAVA_KEYS.get(wanted)
    if java is not None and not found:
        found.append(Explanation(java.name, "", java.reason, effect=False, rocketmq=java.meaning))
    if not found:
        raise unknown_keys([key], [*known, *(each.name for each in JAVA_KEYS.values())])[0]
    return found


def _explanation(key: str, server: str, default: str, declared: Declaration) -> Explanation:
    return Explanation(
        key,
        server,
        declared.meaning,
        default=default,
        unit=declared.unit,
        range=declared.range_text(),
        live=declared.live,
        rocketmq=declared.rocketmq or "the same",
        see=declared.see and f"docs/{declared.see}",
    )


# --------------------------------------------------------------------------------- print and check


@dataclass(frozen=True, slots=True)
class Configured:
    """The configuration of one server, with the ``defaults`` of each part of it.

    ``kept`` are settings that were changed while it ran, and ``kept_path`` is their file.
    """

    server: str
    parts: tuple[Config, ...]
    defaults: tuple[Config, ...]
    kept: Mapping[str, str]
    kept_path: str = ""


def configured_broker(broker: BrokerConfig, store: StoreConfig) -> Configured:
    """Return the configuration of a broker as it would start: with its kept settings applied.

    Raise SettingsError for kept settings that cannot be used, OSError if they cannot be read.
    """
    from cometmq.broker.config import BrokerConfig, apply_kept, kept_path, read_kept
    from cometmq.store.config import StoreConfig

    root = store.store_path_root_dir
    kept = read_kept(root)
    apply_kept(broker, store)
    defaults = (BrokerConfig(), StoreConfig())
    return Configured("broker", (broker, store), defaults, kept, kept_path(root))


def configured_namesrv(config: NamesrvConfig) -> Configured:
    """Return the configuration of a name server as it would start.

    Raise as :func:`configured_broker`.
    """
    from cometmq.namesrv.config import NamesrvConfig, apply_kept, kept_path

    kept = apply_kept(config)
    return Configured("name server", (config,), (NamesrvConfig(),), kept, kept_path(config))


def print_config(configured: Configured, given: Given, notices: Sequence[str]) -> list[str]:
    """Return the lines of ``--print-config``: a property file with all settings.

    Those that differ from their default come first, each after a comment with its source and its
    default.
    """
    values: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for part in configured.parts:
        values |= to_properties(part)
    for part in configured.defaults:
        defaults |= to_properties(part)
    kept = {normalise(key) for key in configured.kept}
    differing, same = [], []
    for key in sorted(values):
        value, default = values[key], defaults[key]
        is_kept = normalise(key) in kept
        source = f"changed live, {configured.kept_path}" if is_kept else given.source(key)
        if value == default and value != HIDDEN:
            same.append(f"{key}={value}")
            continue
        differing += [
            f"# {source or 'follows from other settings'}; default: {default or '(empty)'}",
            f"{key}={value}",
        ]
    differ = plural(
        len(differing) // 2,
        "setting differs from its default",
        "settings differ from their defaults",
    )
    return [
        f"# {configured.server}: {differ}",
        *(f"# notice: {notice}" for notice in notices),
        *differing,
        "# defaults",
        *same,
    ]


def check(configured: Configured, try_port: Callable[[str, int, str], None]) -> list[str]:
    """Return the problems that would keep a server from starting; [] if there are none.

    Ports must be free (``try_port`` raises SettingsError if one is not), directories writable,
    certificates and credentials readable, and ACL files well-formed. Nothing is changed.
    """
    problems: list[str] = []
    for look in (*_ports(configured, try_port), *_files(configured)):
        try:
            look()
        except (CometError, ValueError) as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return problems


def ports_of(configured: Configured) -> dict[int, str]:
    """Return the ports that a server will listen on, with the settings that they come from."""
    from cometmq.broker.config import BrokerConfig, listening_ports
    from cometmq.namesrv.config import NamesrvConfig

    found: dict[int, str] = {}
    for part in configured.parts:
        if isinstance(part, BrokerConfig):
            found |= listening_ports(part)
        elif isinstance(part, NamesrvConfig) and part.listen_port:
            found[part.listen_port] = "listenPort of the name server"
    return found


def _ports(
    configured: Configured, try_port: Callable[[str, int, str], None]
) -> Iterator[Callable[[], object]]:
    host = getattr(configured.parts[0], "bind_address", "")
    for port, setting in ports_of(configured).items():
        yield partial(try_port, host, port, setting)


def _files(configured: Configured) -> Iterator[Callable[[], object]]:
    from cometmq.broker.config import BrokerConfig
    from cometmq.net.outgoing import ClientTls
    from cometmq.net.tls import server_tls
    from cometmq.store.config import StoreConfig

    home = ""
    for part in configured.parts:
        if isinstance(part, StoreConfig):
            home = part.store_path_root_dir
            yield partial(_check_directory, "storePathRootDir", home)
            for path in part.writable_log_directories:
                yield partial(_check_directory, "storePathCommitLog", path)
    for part in configured.parts:
        if isinstance(part, StoreConfig):
            continue
        if not isinstance(part, BrokerConfig):
            home = os.path.dirname(os.path.expanduser(part.kv_config_path))
            yield partial(_check_directory, "kvConfigPath", home)
        else:
            yield part.connect_options
            if part.connects_with_tls or part.ha_tls_enable:
                yield ClientTls(part.client_tls).load
        yield partial(server_tls, part.tls)
        if part.acl_enable:
            yield partial(_check_acl, part.rocketmq_home or home)


def _check_directory(key: str, path: str) -> None:
    """Raise SettingsError if a server could not write files into a directory, or create it."""
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise SettingsError(key, f"{place} is not a directory: choose another, or move the file")
    if not os.access(place, os.W_OK | os.X_OK):
        what = "is not writable" if place == os.path.abspath(path) else "lets nothing be created"
        raise SettingsError(key, f"{place} {what} for this user: choose another, or its owner")


def _check_acl(home: str) -> None:
    """Raise AclDenied for unusable ACL files, SettingsError if they would refuse every request."""
    from cometmq.acl.control import AccessControl
    from cometmq.acl.files import AclFiles
    from cometmq.core.clock import SystemClock

    clock = SystemClock()
    access = AccessControl(AclFiles(home, clock.wall_ms), clock)
    if not access.rules.accounts and not access.rules.white_list:
        problem = f"there is no account in {access.default_path}: every request would be refused"
        raise SettingsError("aclEnable", f"{problem}; write one, or set rocketmqHome")
