"""Conversion of text settings to frozen dataclasses.

Settings arrive as ``key=value`` text: a RocketMQ property file, ``--set`` on the command line, or
an update-config request. A key belongs to the dataclass field with the same letters, so
``mappedFileSizeCommitLog``, ``mapped_file_size_commit_log``, ``tls.server.mode`` and upstream's odd
``brokerIP1`` all find their field. Each field is declared once, by :func:`setting`: its default,
its meaning, its unit, its range, and whether it may change while the server runs.

All unknown keys and unusable values are reported in one error. For an unknown key it suggests the
known keys that may be meant (:func:`nearest`).
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from cometmq.core.errors import SettingsError

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")
Default = TypeVar("Default")

#: Maximum length of a number; Python parses long numbers in quadratic time.
_NUMBER_MAX_CHARACTERS = 40
_NUMBER_BOUND = 2**63
#: Maximum length of a key or value in an error, and of a key for which suggestions are sought.
_SHOWN_CHARACTERS = 80

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})

#: Text in place of a secret.
HIDDEN: Final = "******"

#: Value of ``Declaration.rocketmq`` for settings that RocketMQ does not have.
OURS: Final = "not a setting of RocketMQ"

_DECLARATION: Final = "declaration"
#: Maximum number of unknown keys in one error that get suggestions.
_SUGGESTED_MAX: Final = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """Declaration of a setting: its meaning in one sentence, its unit and its range.

    ``live`` settings may change while the server runs. The values of ``secret`` ones are hidden.
    ``rocketmq`` says how RocketMQ differs, ``see`` names a page of the documentation.
    """

    meaning: str = ""
    unit: str = ""
    least: int | None = None
    most: int | None = None
    live: bool = False
    rocketmq: str = ""
    see: str = ""
    secret: bool = False

    def range_problem(self, value: object) -> str | None:
        """Return why a value is out of range; None if it is in range or is not a number."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        is_low = self.least is not None and value < self.least
        is_high = self.most is not None and value > self.most
        return f"it must be {self.range_text()}, not {value}" if is_low or is_high else None

    def range_text(self) -> str:
        """Return the range with its unit, such as ``from 1 to 99 percent``; "" if it has none."""
        unit = f" {self.unit}" if self.unit else ""
        if self.least is None and self.most is None:
            return ""
        if self.most is None:
            return f"at least {self.least}{unit}"
        if self.least is None:
            return f"at most {self.most}{unit}"
        return f"from {self.least} to {self.most}{unit}"


def setting(
    default: Default,
    meaning: str,
    *,
    unit: str = "",
    least: int | None = None,
    most: int | None = None,
    live: bool = False,
    rocketmq: str = "",
    see: str = "",
    secret: bool = False,
) -> Default:
    """Declare a field of a configuration, with its default; see :class:`Declaration`."""
    declared = Declaration(meaning, unit, least, most, live, rocketmq, see, secret)
    field: Default = dataclasses.field(
        default=default, repr=not secret, metadata={_DECLARATION: declared}
    )
    return field


def declarations(cls: type[DataclassInstance]) -> dict[str, Declaration]:
    """Return the declarations of the fields of ``cls``, by field name."""
    return {
        field.name: field.metadata.get(_DECLARATION, Declaration())
        for field in dataclasses.fields(cls)
    }


def known_keys(cls: type[DataclassInstance]) -> list[str]:
    """Return the keys of ``cls``, in RocketMQ's spelling."""
    return [to_wire_name(field.name) for field in dataclasses.fields(cls)]


def live_fields(cls: type[DataclassInstance]) -> frozenset[str]:
    """Return the names of the live fields of ``cls``: they may change while the server runs."""
    return frozenset(name for name, declared in declarations(cls).items() if declared.live)


def check_ranges(settings: DataclassInstance) -> None:
    """Raise SettingsError for a field whose value is out of its declared range."""
    for name, declared in declarations(type(settings)).items():
        problem = declared.range_problem(getattr(settings, name))
        if problem is not None:
            raise SettingsError(to_wire_name(name), problem)


def normalise(key: str) -> str:
    """Return a key in lower case without underscores, hyphens and dots, so that all its spellings
    are equal."""
    return key.replace("_", "").replace("-", "").replace(".", "").lower()


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java property file: ``key=value`` or ``key: value`` lines, # and ! comments.

    Raise SettingsError for a line that is neither.
    """
    return {key: value for _, key, value in property_lines(text)}


def property_lines(text: str) -> list[tuple[int, str, str]]:
    """Return the line number, key and value of each setting of a property file.

    Raise SettingsError as :func:`parse_properties` does.
    """
    found: list[tuple[int, str, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        cut = min((at for at in (line.find("="), line.find(":")) if at >= 0), default=-1)
        if cut <= 0:
            raise SettingsError(
                line[:_SHOWN_CHARACTERS], f"line {number} is not of the form key=value"
            )
        found.append((number, line[:cut].strip(), line[cut + 1 :].strip()))
    return found


def format_properties(values: Mapping[str, str]) -> str:
    """Return the reverse of :func:`parse_properties`: one line a key, sorted."""
    return "".join(f"{key}={values[key]}\n" for key in sorted(values))


def convert(
    cls: type[DataclassInstance], values: Mapping[str, str], problems: list[SettingsError]
) -> tuple[dict[str, Any], set[str]]:
    """Convert the values of the keys that ``cls`` has fields for.

    Return the converted values by field name, and the keys of ``values`` that belong to a field.
    Append an error to ``problems`` for each value that cannot be parsed or is out of range.
    """
    hints = _hints(cls)
    declared = declarations(cls)
    fields = {normalise(name): name for name in declared}
    taken: dict[str, Any] = {}
    used: set[str] = set()
    for key, text in values.items():
        name = fields.get(normalise(key))
        if name is None:
            continue
        used.add(key)
        try:
            value = taken[name] = _convert(key, text, hints[name])
        except SettingsError as error:
            problems.append(error)
        else:
            problem = declared[name].range_problem(value)
            if problem is not None:
                problems.append(SettingsError(key, problem))
    return taken, used


@lru_cache(maxsize=64)
def _hints(cls: type[DataclassInstance]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def build(
    cls: type[Settings], values: Mapping[str, str], base: Settings | None = None
) -> tuple[Settings, set[str]]:
    """Build a ``cls`` from the keys that it has fields for.

    Return the instance and the keys of ``values`` that belong to a field. Other fields have their
    default, or their value in ``base``. Raise SettingsError for values that cannot be parsed or are
    out of range.
    """
    problems: list[SettingsError] = []
    taken, used = convert(cls, values, problems)
    raise_all(problems)
    return (cls(**taken) if base is None else dataclasses.replace(base, **taken)), used


def raise_all(problems: Iterable[SettingsError]) -> None:
    """Raise one SettingsError for all problems, each named once. Do nothing if there are none."""
    different = list({(each.key, each.problem): each for each in problems}.values())
    if different:
        first, *rest = different
        raise SettingsError(first.key, first.problem, is_unusable=first.is_unusable, more=rest)


def changed_fields(wanted: Settings, current: Settings) -> list[str]:
    """Return the names of the fields in which two configurations differ."""
    names = [field.name for field in dataclasses.fields(current)]
    return [name for name in names if getattr(wanted, name) != getattr(current, name)]


def unknown_keys(keys: Iterable[str], known: Collection[str]) -> list[SettingsError]:
    """Return an error for each key, which suggests ``known`` keys that may be meant."""
    problems = []
    for number, key in enumerate(keys):
        near = nearest(key, known) if number < _SUGGESTED_MAX else []
        hint = (
            f"did you mean {' or '.join(repr(name) for name in near)}?"
            if near
            else "see docs/settings.md for all keys"
        )
        short = key[:_SHOWN_CHARACTERS]
        problems.append(SettingsError(short, f"no such setting; {hint}", is_unusable=False))
    return problems


def reject_unknown(
    values: Mapping[str, str],
    used: Iterable[str],
    classes: Iterable[type[DataclassInstance]],
    others: Iterable[str] = (),
) -> None:
    """Raise SettingsError for the keys in ``values`` that are not in ``used``.

    The keys of ``classes``, and ``others``, are suggested in their place.
    """
    known = [key for cls in classes for key in known_keys(cls)]
    taken = set(used)
    raise_all(unknown_keys([key for key in values if key not in taken], [*known, *others]))


def nearest(key: str, known: Iterable[str]) -> list[str]:
    """Return the one or two of the ``known`` keys that are most similar to ``key``.

    Case, separators and the order of words do not count. Beyond that, a quarter of the letters may
    differ, or words may be missing. Nothing is similar to a key longer than _SHOWN_CHARACTERS.
    """
    if len(key) > _SHOWN_CHARACTERS:
        return []
    joined, words = normalise(key), _words(key)
    most = max(2, len(joined) // 4)
    found: list[tuple[int, str]] = []
    in_order, letters = "".join(sorted(words)), Counter(joined)
    for name in known:
        known_joined, others, known_in_order, known_letters = _known_parts(name)
        distance = most + 4  # too far to be suggested
        # Cheap checks first: an edit changes the length, and the letter counts, by at most one.
        may_be = abs(len(joined) - len(known_joined)) <= most
        if (
            may_be
            and max((letters - known_letters).total(), (known_letters - letters).total()) <= most
        ):
            distance = _edit_distance(joined, known_joined, most)
            if distance > 0 and len(words) > 1:
                distance = min(distance, _edit_distance(in_order, known_in_order, most - 1) + 1)
        if distance > 0 and len(words) > 1 and set(words) < set(others):
            distance = min(distance, most + len(others) - len(words))
        if distance <= most + 3:
            found.append((distance, name))
    found.sort()
    best = [name for distance, name in found if distance == found[0][0]]
    return best[:2]


@lru_cache(maxsize=2_048)
def _known_parts(name: str) -> tuple[str, list[str], str, Counter[str]]:
    """Return a known key normalised, its words, the words sorted and joined, and letter counts."""
    joined, words = normalise(name), _words(name)
    return joined, words, "".join(sorted(words)), Counter(joined)


def _words(key: str) -> list[str]:
    """Return the words of a key in lower case: for brokerIP1, they are broker, ip and 1."""
    spaced: list[str] = []
    before = " "
    for letter in key:
        starts_word = letter.isupper() and not before.isupper()
        if starts_word or letter.isdigit() != before.isdigit():
            spaced.append(" ")
        spaced.append(letter if letter.isalnum() else " ")
        before = letter
    return "".join(spaced).lower().split()


def _edit_distance(one: str, two: str, most: int) -> int:
    """Return the minimum number of insertions, deletions, changes and swaps between two texts.

    Return ``most`` + 4 if that number is over ``most``.
    """
    beyond = most + 4
    if abs(len(one) - len(two)) > most:
        return beyond
    before: list[int] = []
    row = list(range(len(two) + 1))
    for i, letter in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, other in enumerate(two, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == two[j - 2] and one[i - 2] == other:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return beyond
    return row[-1] if row[-1] <= most else beyond


def to_properties(settings: DataclassInstance) -> dict[str, str]:
    """Return every field as text, by its key in RocketMQ's spelling. Secrets are ``******``."""
    found: dict[str, str] = {}
    for name, declared in declarations(type(settings)).items():
        text = _render(getattr(settings, name))
        found[to_wire_name(name)] = HIDDEN if declared.secret and text else text
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
    """Return the quoted text for an error; only its beginning if it is long."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."
