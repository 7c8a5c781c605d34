"""Options about brokers that are away: which ones a read needs, and how long it waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from cometmq.spark.options import Given, duration_ms, get, names, one_of, some_text
from cometmq.spark.read.remembered import default_folder

OPTIONS: Final = ("brokers", "knownBrokers", "missingBroker", "outageTimeout")


class MissingBroker(Enum):
    """Handling of a broker that is away."""

    WAIT = "wait"
    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Outage:
    """Options for outages. ``brokers`` hold queues of the read, whatever the route says. If none
    are named, the folder ``memory`` says which brokers are expected. ``timeout_ms`` None is the
    default of the kind of read."""

    rule: MissingBroker = MissingBroker.WAIT
    timeout_ms: int | None = None
    brokers: tuple[str, ...] = ()
    memory: str | None = None


def parse(given: Given) -> Outage:
    """Parse the options that name brokers and say how to handle an outage. Raises BadOption."""
    memory = get(given, "knownBrokers", some_text, default_folder() or "none")
    return Outage(
        MissingBroker(get(given, "missingBroker", one_of("wait", "fail", "warn"), "wait")),
        get(given, "outageTimeout", duration_ms, None),
        get(given, "brokers", names, ()),
        None if memory.lower() == "none" else memory,
    )
