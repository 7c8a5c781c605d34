"""Stores read as tasks read them, without Spark."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cometmq.spark.schema import NAMES
from cometmq.spark.store.options import parse
from cometmq.spark.store.planning import Part, plan
from cometmq.spark.store.reader import batches

Row = dict[str, Any]


def planned(root: Path | str, **options: object) -> list[tuple[Part, ...]]:
    """The tasks of a read."""
    return plan(parse(_texts({"store": root, **options})))


def rows(root: Path | str, names: tuple[str, ...] = NAMES, **options: object) -> list[Row]:
    """All rows of a read, in the order of tasks."""
    read = parse(_texts({"store": root, **options}))
    return [row for parts in plan(read) for batch in batches(parts, read, names)
            for row in batch.to_pylist()]  # fmt: skip


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}
