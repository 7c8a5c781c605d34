"""Errors in a store's files during a read: deleted in the meantime, or damaged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import CometError
from cometmq.spark.read.dirty import Mode

if TYPE_CHECKING:
    from cometmq.spark.store.options import StoreOptions
    from cometmq.spark.store.pieces import Damage
    from cometmq.spark.store.planning import LogPart

log = logging.getLogger(__name__)


class LogGone(CometError):
    """Raised if a part of the log (physical offsets) was deleted between the plan and the task."""

    def __init__(self, path: str, start: int, stop: int) -> None:
        self.path = path
        self.start = start
        self.stop = stop
        super().__init__(
            f"{path} is gone, and with it physical offsets {start} to {stop} (deleted after the "
            "broker's retention time); set option failOnDataLoss to false to go on without them"
        )


class DamagedLog(CometError):
    """Raised if the bytes at physical offset ``offset`` of a log file are no record."""

    def __init__(self, path: str, offset: int, problem: str) -> None:
        self.path = path
        self.offset = offset
        self.problem = problem
        super().__init__(
            f"{path} is damaged at physical offset {offset}: {problem}; options mode=PERMISSIVE "
            "and badRecordsPath read on behind it"
        )


def report_gone(part: LogPart, options: StoreOptions) -> None:
    """Raise LogGone, or log it if the user chose to continue."""
    if options.fail_on_data_loss:
        raise LogGone(part.file.path, part.start, part.stop)
    log.warning("log_gone path=%s start=%d stop=%d", part.file.path, part.start, part.stop)


def report_damage(part: LogPart, damage: Damage, options: StoreOptions) -> None:
    """Raise DamagedLog, or log it if the mode allows bad records.

    The damaged bytes yield no rows, because their topic and queue are unknown.
    """
    if options.dirty.mode is Mode.FAILFAST:
        raise DamagedLog(part.file.path, damage.start, damage.problem)
    log.warning(
        "log_damaged path=%s start=%d stop=%d problem=%r",
        part.file.path, damage.start, damage.stop, damage.problem,
    )  # fmt: skip
