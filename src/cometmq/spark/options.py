"""Parsing of options: names in any case, values from text, and errors that name the option.

Spark passes all options as text. An unknown option is an error, because a misspelt limit would
otherwise be ignored. Each entry point (source, sink, stores, jobs) lists the names that it knows
and parses its options here, so that all entry points report errors alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, TypeVar

from cometmq.core.errors import CometError

T = TypeVar("T")

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}

Given = Mapping[str, str]
"""Option texts by their canonical names."""


class BadOption(CometError, ValueError):
    """Raised if ``option`` is missing, unknown, or has a value that cannot be used."""

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self.problem = problem
        super().__init__(f"option {option!r}: {problem}")


class NoArchive(BadOption):
    """Raised if there is no archive at the place that ``option`` names."""


class SparkTooOld(CometError):
    """Raised if ``what`` needs version ``needed`` of pyspark, and version ``found`` is older."""

    def __init__(self, what: str, found: str, needed: str) -> None:
        self.what = what
        self.found = found
        self.needed = needed
        super().__init__(
            f"{what} need pyspark {needed} or later, and this is {found}: install "
            f"pyspark>={needed} on the driver and the executors"
        )


SPARKS: Final = ("checkpointLocation", "queryName", "path", "paths")
"""Options that Spark passes along for its own use. The first two appear when a stream is written,
the others come from ``load``, ``save`` and ``start``."""


def by_name(
    options: Mapping[str, str],
    known: Sequence[str],
    aliases: Mapping[str, str] | None = None,
    hint: Callable[[str], str] = lambda option: "",
) -> dict[str, str]:
    """Return the options by their canonical names.

    ``options`` may have names in any case, or ``aliases`` (from lower case to canonical name).
    Options that Spark adds for itself are left out. Raises BadOption for a name that is not
    ``known``, with the ``hint`` for it or the closest known name, and for a name given twice.
    """
    sparks = {name.lower() for name in SPARKS} - {name.lower() for name in known}
    names = {name.lower(): name for name in known} | dict(aliases or {})
    given: dict[str, str] = {}
    written: dict[str, str] = {}
    for key, value in options.items():
        if key.lower() in sparks:
            continue
        name = names.get(key.lower())
        if name is None:
            near = get_close_matches(key.lower(), names, n=1)
            other = f"did you mean {names[near[0]]!r}?" if near else f"known are {', '.join(known)}"
            raise BadOption(key, f"no such option; {hint(key) or other}")
        if name in written:
            raise BadOption(key, f"is already given as {written[name]}")
        given[name], written[name] = value, key
    return given


def get(given: Given, name: str, read: Callable[[str], T], default: T) -> T:
    """Return the parsed value of an option, or ``default``. Raises BadOption if ``read`` raises
    ValueError."""
    text = given.get(name)
    return default if text is None else parsed(name, text, read)


def required(given: Given, name: str, read: Callable[[str], T]) -> T:
    """Return the parsed value of a required option. Raises BadOption if it is missing or
    invalid."""
    if name not in given:
        raise BadOption(name, "is required")
    return parsed(name, given[name], read)


def parsed(name: str, text: str, read: Callable[[str], T]) -> T:
    """Return ``text`` parsed by ``read``. Turn its ValueError into a BadOption that names the
    option."""
    try:
        return read(text.strip())
    except ValueError as error:
        raise BadOption(name, str(error)) from None


def only_one(given: Given, names: Sequence[str]) -> str | None:
    """Return which of several mutually exclusive options is given, or None. Raises BadOption if
    two are given."""
    found = [name for name in names if name in given]
    if len(found) > 1:
        raise BadOption(found[1], f"cannot be given together with {found[0]}")
    return found[0] if found else None


# ------------------------------------------- parsers: take text, raise ValueError


def some_text(text: str) -> str:
    """Accept any text that is not empty."""
    if not text:
        raise ValueError("is empty")
    return text


def names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas. Return each once, in their order."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError("names nothing")
    return found


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number <= 0:
        raise ValueError(f"{text!r} is not a positive number")
    return number


def duration_ms(text: str) -> int:
    """Parse a duration like ``500ms``, ``30s``, ``15m`` or ``2h`` into milliseconds."""
    number = text.rstrip("msh")
    unit_ms = _UNITS_MS.get(text[len(number) :])
    if unit_ms is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 15m or 2h")
    return positive(number) * unit_ms


def moment_ms(text: str) -> int:
    """Parse a time into milliseconds since the epoch: a number of them, or an ISO 8601 time (UTC
    unless it says otherwise). Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither milliseconds nor an ISO 8601 time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def boolean(text: str) -> bool:
    """Parse ``true`` or ``false``, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts one of ``words`` in any case and returns it as spelled here."""
    lowered = {word.lower(): word for word in words}

    def read(text: str) -> str:
        if text.lower() not in lowered:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return lowered[text.lower()]

    return read
