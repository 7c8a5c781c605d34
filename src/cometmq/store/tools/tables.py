"""Checks of a broker's table files beside a store, with the types by which a broker reads them."""

from __future__ import annotations

import os.path
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from cometmq.core.errors import CometError
from cometmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.protocol.fastjson import parse_json
from cometmq.store.files import read_file

if TYPE_CHECKING:
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.findings import Findings

_TABLES: tuple[tuple[str, str, Any], ...] = (
    ("topics.json", "topicConfigTable", TopicConfig),
    ("subscriptionGroup.json", "subscriptionGroupTable", SubscriptionGroupConfig),
    ("consumerOffset.json", "offsetTable", dict[int, int]),
    ("delayOffset.json", "offsetTable", int),
    ("consumerFilter.json", "filterDataByTopic", dict[str, Any]),
)
_DELETED = "cometmqDeleted"


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of all topics, and for deleted ones the log offset at which they ended."""

    names: frozenset[str] = frozenset()
    deleted: dict[str, int] = field(default_factory=dict)


def check_tables(files: ReadOnlyFiles, root: str, findings: Findings) -> Topics:
    """Report tables that a broker cannot read; return the topics.

    If a table cannot be read, its backup is read instead, as in a start. Raises OSError.
    """
    topics = Topics()
    for name, key, value_type in _TABLES:
        path = os.path.join(root, "config", name)
        for place in (path, path + ".bak"):
            raw = read_file(files, place)
            if raw is None:
                continue
            try:
                found = _checked(raw, key, value_type)
                read = _topics(found, key)
            except (ValueError, TypeError, CometError) as error:
                findings.damage("table", place, -1, f"it cannot be read: {error}")
                continue
            if name == "topics.json":
                topics = read
            break
    return topics


def _checked(raw: bytes, key: str, value_type: Any) -> dict[str, Any]:
    """Return the contents of a table's file. Raises ValueError, TypeError or CometError."""
    table = parse_json(raw)
    if not isinstance(table, dict) or key not in table:
        raise ValueError(f"it has no {key}")
    content = table[key] or {}
    if not isinstance(content, dict):
        raise ValueError(f"{key} is no object")
    keys: Any = int if value_type is int else str
    for name, value in content.items():
        try:
            msgspec.convert({name: value}, dict[keys, value_type], strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{key}, {str(name)[:100]!r}: {error}") from None
    version = table.get("dataVersion")
    if isinstance(version, dict):
        for each in ("counter", "timestamp"):
            int(version.get(each, 0))
    return table


def _topics(table: dict[str, Any], key: str) -> Topics:
    deleted = table.get(_DELETED)
    ends = deleted.items() if isinstance(deleted, dict) else ()
    return Topics(
        frozenset(str(name) for name in table[key] or {}),
        {str(name): int(end) for name, end in ends},
    )
