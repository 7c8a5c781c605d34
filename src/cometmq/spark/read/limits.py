"""The size of one micro-batch: combines the options with Spark's read limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from cometmq.spark.options import BadOption, Given, duration_ms, get, positive

OPTIONS: Final = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger"),
    *("minOffsetsPerTrigger", "maxTriggerDelay"),
)
TRIGGER_DELAY_MS: Final = 15 * 60_000


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a micro-batch: at most ``rows_max`` messages and about ``bytes_max`` bytes. A batch
    with fewer than ``rows_min`` messages waits until the last one is ``delay_ms`` ago."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_ms: int = TRIGGER_DELAY_MS


def parse(given: Given) -> Caps:
    """Parse the options that limit a micro-batch. Raises BadOption."""
    caps = Caps(
        rows_max=get(given, "maxOffsetsPerTrigger", positive, None),
        bytes_max=get(given, "maxBytesPerTrigger", positive, None),
        rows_min=get(given, "minOffsetsPerTrigger", positive, None),
        delay_ms=get(given, "maxTriggerDelay", duration_ms, TRIGGER_DELAY_MS),
    )
    if caps.rows_min is None and "maxTriggerDelay" in given:
        raise BadOption("maxTriggerDelay", "needs minOffsetsPerTrigger")
    if caps.rows_min is not None and caps.rows_max is not None and caps.rows_min > caps.rows_max:
        raise BadOption("minOffsetsPerTrigger", "is more than maxOffsetsPerTrigger")
    return caps


def default_limit(caps: Caps) -> ReadLimit:
    """Return the limit that Spark passes with each request.

    Spark has no limit with several parts, so one of them stands for all: see :func:`under`.
    """
    if caps.rows_max is not None:
        return ReadMaxRows(caps.rows_max)
    if caps.bytes_max is not None:
        return ReadMaxBytes(caps.bytes_max)
    if caps.rows_min is not None:
        return ReadMinRows(caps.rows_min)
    return ReadAllAvailable()


def under(limit: ReadLimit, caps: Caps) -> Caps:
    """Return the limits that apply when Spark asks with ``limit``.

    They are those of the options, with the number of ``limit`` in place of theirs. ReadAllAvailable
    removes all limits.
    """
    match limit:
        case ReadAllAvailable():
            return Caps()
        case ReadMaxRows():
            return replace(caps, rows_max=limit.max_rows)
        case ReadMaxBytes():
            return replace(caps, bytes_max=limit.max_bytes)
        case ReadMinRows():
            return replace(caps, rows_min=limit.min_rows)
    return caps  # ReadMaxFiles does not apply: there are no files


def is_enough(caps: Caps, rows: int, since_last_ms: int | None) -> bool:
    """Return whether ``rows`` messages are enough for a batch. ``since_last_ms`` is None before the
    first one."""
    if caps.rows_min is None or rows >= caps.rows_min:
        return True
    return since_last_ms is None or since_last_ms >= caps.delay_ms
