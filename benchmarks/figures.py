"""The results of a run: its document, medians and spread, its table, and the check for
regressions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

#: The broker that every ratio is relative to, and the name of a limit of the machine.
REFERENCE: Final = "rocketmq-4.9.7"
LIMIT: Final = "limit"
OURS: Final = "cometmq"
#: The columns of a table from left to right; others follow.
ORDER: Final = (OURS, "cometmq-plain", REFERENCE, "rocketmq-5.5.0", "kafka", "nats")
#: A ratio that is worse than the recorded one by more than this is a regression.
FALL: Final = 0.05


class Spread(msgspec.Struct, frozen=True):
    """The median and the extremes of a row's rounds."""

    median: float
    low: float
    high: float


class Row(msgspec.Struct):
    """One figure of all targets. ``rounds`` are its values by target, in the order of the rounds.

    ``wanted`` bounds the ratio CometMQ / REFERENCE, or CometMQ / LIMIT if ``against`` says so: a
    lower bound if ``better`` is "more", else an upper one. ``problems`` lists the rounds that do
    not count, with reasons.
    """

    name: str
    unit: str
    better: Literal["more", "less"]
    wanted: float | None = None
    against: str = REFERENCE
    rounds: dict[str, list[float]] = {}
    problems: list[str] = []

    def spread(self, target: str) -> Spread | None:
        """Return the spread of a target's rounds, or None if none counted."""
        return spread(self.rounds.get(target, ()))

    def ratio(self) -> float | None:
        """Return the ratio of CometMQ's median to that of the compared target, or None if one is
        missing."""
        ours, other = self.spread(OURS), self.spread(self.against)
        if ours is None or other is None or not other.median or not ours.median:
            return None
        return ours.median / other.median


class Document(msgspec.Struct):
    """A whole run. ``peers`` are the settings of each target, ``left_out`` the cases that could not
    run."""

    at: str
    machine: dict[str, str]
    versions: dict[str, str]
    options: dict[str, str]
    peers: dict[str, str]
    rows: list[Row] = []
    left_out: list[str] = []


class Recorded(msgspec.Struct):
    """A ratio that a later run must keep."""

    ratio: float
    better: Literal["more", "less"]
    at: str


class Fall(msgspec.Struct, frozen=True):
    """A ratio that got worse. ``share`` is the relative loss, 0.1 for a tenth."""

    name: str
    recorded: float
    now: float
    share: float


def spread(values: Sequence[float]) -> Spread | None:
    """Return the median and the extremes of the values, or None without any."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def encode(document: Document) -> bytes:
    """Return the document as JSON, with the spread of each target and the ratio of each row."""
    fields = msgspec.to_builtins(document)
    for row, found in zip(document.rows, fields["rows"], strict=True):
        found["spread"] = msgspec.to_builtins({name: row.spread(name) for name in row.rounds})
        found["ratio"] = row.ratio()
    return msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n"


def decode(data: bytes) -> Document:
    """Return the document that ``encode`` wrote. Raises msgspec.ValidationError, DecodeError."""
    return msgspec.json.decode(data, type=Document)


def number_text(value: float) -> str:
    """Return a figure with three significant digits and separated thousands."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{round(value, 2 - len(str(int(abs(value)))) + 1):,.0f}".replace(",", " ")
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def _cell(row: Row, target: str) -> str:
    found = row.spread(target)
    if found is None:
        return ""
    text = number_text(found.median)
    if len(row.rounds[target]) > 1:
        text += f" ({number_text(found.low)} to {number_text(found.high)})"
    return text


def _wanted(row: Row) -> str:
    if row.wanted is None:
        return ""
    return f"{'at least' if row.better == 'more' else 'at most'} {row.wanted:g}"


def columns(rows: Iterable[Row]) -> list[str]:
    """Return the targets in the rows: those of ORDER first, then others in order of appearance."""
    found = dict.fromkeys(target for row in rows for target in row.rounds)
    return [target for target in ORDER if target in found] + [
        target for target in found if target not in ORDER
    ]


def table(document: Document) -> str:
    """Return the run as Markdown: medians, with the lowest and highest round in parentheses."""
    targets = columns(document.rows)
    head = ["case", "unit", *targets, "ratio", "wanted"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in document.rows:
        ratio = row.ratio()
        told = "" if ratio is None else f"{ratio:.2f}"
        if told and row.against != REFERENCE:
            told += f" of {row.against}"
        cells = [row.name, row.unit, *(_cell(row, target) for target in targets), told]
        lines.append("| " + " | ".join([*cells, _wanted(row)]) + " |")
    notes = [f"- {name}: {setting}" for name, setting in document.peers.items()]
    notes += [f"- left out: {reason}" for reason in document.left_out]
    notes += [f"- not counted: {text}" for row in document.rows for text in row.problems]
    facts = [f"{key} {value}" for key, value in (document.machine | document.versions).items()]
    options = [f"{key} {value}" for key, value in document.options.items()]
    notes.append(f"- {document.at}; " + "; ".join([*facts, *options]))
    return "\n".join([*lines, "", *notes]) + "\n"


def recorded_of(document: Document) -> dict[str, Recorded]:
    """Return the ratios of a run, by the name of the row."""
    found = ((row, row.ratio()) for row in document.rows)
    return {
        row.name: Recorded(round(ratio, 4), row.better, document.at)
        for row, ratio in found
        if ratio is not None
    }


def load_recorded(path: Path) -> dict[str, Recorded]:
    """Return the recorded ratios of a file; none if there is no file."""
    if not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Recorded])


def save_recorded(path: Path, recorded: Mapping[str, Recorded]) -> None:
    """Write ratios to a file, by name."""
    text = msgspec.json.encode(dict(sorted(recorded.items())))
    path.write_bytes(msgspec.json.format(text, indent=1) + b"\n")


def falls(document: Document, recorded: Mapping[str, Recorded], limit: float = FALL) -> list[Fall]:
    """Return the rows whose ratio is worse than the recorded one by more than ``limit``."""
    found = []
    for row in document.rows:
        before, now = recorded.get(row.name), row.ratio()
        if before is None or now is None:
            continue
        kept = now / before.ratio if row.better == "more" else before.ratio / now
        if 1 - kept > limit:
            found.append(Fall(row.name, before.ratio, round(now, 4), round(1 - kept, 4)))
    return found
