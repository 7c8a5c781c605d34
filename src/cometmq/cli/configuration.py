"""The settings of a server's command line: where each comes from, and what a key means.

A setting comes from the environment, a property file, ``--set`` or an option; the later of these
wins. Errors and :func:`explain` name settings as RocketMQ does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.core.settings import normalise, property_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """Add a setting; it replaces an earlier one of any spelling."""
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
