"""Limits of one name server: names, brokers, topics and bytes. No I/O.

Any machine may register, so everything that a registration leaves in memory is bounded. A
registration over a limit is refused with a remark that names the limit. It changes nothing then,
and known brokers stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import BadRequest
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.protocol.headers import RegisterBroker

#: Memory of a topic of a broker besides its name, and memory of one queue layout.
ENTRY_BYTES: Final = 64
LAYOUT_BYTES: Final = 400
_INT32: Final = 1 << 31
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a route table.

    Lengths are in characters. ``brokers`` limits addresses, and separately names. ``host_brokers``
    limits the addresses registered by one machine, ``connection_brokers`` those of one connection.
    A broker has at most ``topics`` topics with ``layouts`` different queue layouts. ``topic_bytes``
    limits the topics of all brokers together, counted as ENTRY_BYTES plus the name for each topic
    of each broker.
    """

    name_length: int = 255
    topic_length: int = 512
    brokers: int = 4_096
    host_brokers: int = 1_024
    connection_brokers: int = 64
    name_addresses: int = 64
    address_names: int = 16
    name_clusters: int = 16
    filter_servers: int = 16
    topics: int = 250_000
    layouts: int = 1_024
    topic_bytes: int = 1 << 30


def check_texts(broker: RegisterBroker, filter_servers: list[str], limits: Limits) -> None:
    """Raise BadRequest (SYSTEM_ERROR) if a text of a registration is too long, or if it has too
    many filter servers."""
    most = limits.name_length
    texts = {
        "brokerName": broker.broker_name,
        "brokerAddr": broker.broker_addr,
        "clusterName": broker.cluster_name,
        "haServerAddr": broker.ha_server_addr,
    }
    for field, text in texts.items():
        if len(text) > most:
            raise refused(f"{field} {text[:_SHOWN]!r}... has {len(text)} characters", most)
    check_count("filter servers of a broker", len(filter_servers), limits.filter_servers)
    for server in filter_servers:
        if len(server) > most:
            raise refused(
                f"filter server {server[:_SHOWN]!r}... has {len(server)} characters", most
            )


def check_topic_names(names: Iterable[str], limits: Limits) -> None:
    """Raise BadRequest (SYSTEM_ERROR) if the name of a topic is too long."""
    longest = max(names, key=len, default="")
    if len(longest) > limits.topic_length:
        raise refused(
            f"topic {longest[:_SHOWN]!r}... has {len(longest)} characters", limits.topic_length
        )


def check_numbers(**numbers: int) -> None:
    """Raise BadRequest (SYSTEM_ERROR) for a number that does not fit 32 bits."""
    for field, number in numbers.items():
        if not -_INT32 <= number < _INT32:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"registration refused: {field} of a topic is no 32-bit number",
            )


def check_count(what: str, count: int, most: int) -> None:
    """Raise BadRequest (SYSTEM_ERROR) if ``count`` is over the limit ``most``."""
    if count > most:
        raise refused(f"{count} {what}", most)


def refused(what: str, most: int) -> BadRequest:
    """Return the error that refuses a registration."""
    return BadRequest(
        ResponseCode.SYSTEM_ERROR,
        f"registration refused: {what}; this name server takes at most {most}",
    )


def size_of(names: Iterable[str], count: int) -> int:
    """Return the memory counted for ``count`` topics with these names."""
    return sum(map(len, names)) + ENTRY_BYTES * count
