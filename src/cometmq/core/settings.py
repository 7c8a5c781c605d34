"""Conversion of text settings to frozen dataclasses.

Settings arrive as ``key=value`` text: a RocketMQ property file, ``--set`` on the command line, or
an update-config request. A key belongs to the dataclass field with the same letters, so
``mappedFileSizeCommitLog``, ``mapped_file_size_commit_log``, ``tls.server.mode`` and upstream's odd
``brokerIP1`` all find their field. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from cometmq.core.errors import SettingsError

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")

#: Enough digits for every setting; Python parses long numbers in quadratic time.
_NUMBER_MAX_CHARACTERS = 40
_NUMBER_BOUND = 2**63
#: Characters of a key or value that an error shows, and of a key that is compared with known ones.
_SHOWN_CHARACTERS = 80

#: Metadata of a field whose value is not shown.
SECRET: Final = types.MappingProxyType({"secret": True})
_HIDDEN: Final = "******"

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def normalise(key: str) -> str:
    """Return a key without case, underscores, hyphens and dots, so that all its spellings are
    equal."""
    return key.replace("_", "").replace("-", "").replace(".", "").lower()


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java property file: ``key=value`` or ``key: value`` lines, # and ! comments.

    Raise SettingsError for a line that is neither.
    """
    values: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        cut = min((at for at in (line.find("="), line.find(":")) if at >= 0), default=-1)
        if cut <= 0:
            raise SettingsError(
                line[:_SHOWN_CHARACTERS], f"line {number} is not of the form key=value"
            )
        values[line[:cut].strip()] = line[cut + 1 :].strip()
    return values


def format_properties(values: Mapping[str, str]) -> str:
    """Return the reverse of :func:`parse_properties`: one line a key, sorted."""
    return "".join(f"{key}={values[key]}\n" for key in sorted(values))


def build(
    cls: type[Settings], values: Mapping[str, str], base: Settings | None = None
) -> tuple[Settings, set[str]]:
    """Build a ``cls`` from the keys that it has fields for.

    Return the instance and the keys of ``values`` that it used. Fields not named keep their
    default, or their value in ``base``. Raise SettingsError for a value that cannot be parsed.
    """
    hints = typing.get_type_hints(cls)
    fields = {normalise(field.name): field.name for field in dataclasses.fields(cls)}
    taken: dict[str, Any] = {}
    used: set[str] = set()
    for key, text in values.items():
        name = fields.get(normalise(key))
        if name is not None:
            taken[name] = _convert(key, text, hints[name])
            used.add(key)
    if base is not None:
        return dataclasses.replace(base, **taken), used
    return cls(**taken), used


def changed_fields(wanted: Settings, current: Settings) -> list[str]:
    """Return the names of the fields in which two configurations differ."""
    names = [field.name for field in dataclasses.fields(current)]
    return [name for name in names if getattr(wanted, name) != getattr(current, name)]


def reject_unknown(
    values: Mapping[str, str], used: Iterable[str], classes: Iterable[type[DataclassInstance]]
) -> None:
    """Raise SettingsError for the first key in ``values`` that no class used."""
    known = [to_wire_name(field.name) for cls in classes for field in dataclasses.fields(cls)]
    taken = set(used)
    for key in values:
        if key not in taken:
            short = key[:_SHOWN_CHARACTERS]
            near = difflib.get_close_matches(short, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see docs/settings.md for all keys"
            raise SettingsError(short, f"no such setting; {hint}")


def to_properties(settings: DataclassInstance) -> dict[str, str]:
    """Return every field as text, under RocketMQ's spelling (camel case); secrets as ``******``."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        text = _render(getattr(settings, field.name))
        is_secret = "secret" in field.metadata
        found[to_wire_name(field.name)] = _HIDDEN if is_secret and text else text
    return found


def to_wire_name(name: str) -> str:
    """Return RocketMQ's name (camel case) of a field."""
    head, *rest = name.split("_")
    return head + "".join("IP" + part[2:] if part[:2] == "ip" else part.title() for part in rest)


def _render(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return value.name
    return "" if value is None else str(value)


def _convert(key: str, text: str, hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if not text:
            return None  # to_properties shows an unset setting as ""
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if hint is bool:
        return _convert_bool(key, text)
    if hint is int or hint is float:
        return _convert_number(key, text, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint[text.upper()]
        except KeyError:
            names = ", ".join(hint.__members__)
            raise SettingsError(key, f"{_shown(text)} is none of {names}") from None
    return text


def _convert_bool(key: str, text: str) -> bool:
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise SettingsError(key, f"{_shown(text)} is neither true nor false")


def _convert_number(key: str, text: str, kind: type[int | float]) -> int | float:
    if len(text) > _NUMBER_MAX_CHARACTERS:
        raise SettingsError(key, f"{_shown(text)} is too long for a number")
    try:
        number = kind(text)
    except ValueError:
        raise SettingsError(key, f"{_shown(text)} is not a number") from None
    # Infinity and NaN fail the comparison too.
    if not -_NUMBER_BOUND <= number < _NUMBER_BOUND:
        raise SettingsError(key, f"{_shown(text)} does not fit 64 bits")
    return number


def _shown(text: str) -> str:
    """Return the text for an error; only its beginning if it is long."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."
