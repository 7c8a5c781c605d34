"""Settings of a client: whom it asks, how long it waits, what it may hold in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cometmq.core.errors import SettingsError

_SEPARATORS = re.compile(r"[;,\s]+")


def parse_name_servers(text: str | Iterable[str]) -> tuple[str, ...]:
    """``a:9876;b:9876`` (also with commas, or one text each) as addresses, in the given order.

    Raises SettingsError when there is none.
    """
    parts = _SEPARATORS.split(text) if isinstance(text, str) else list(text)
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise SettingsError("name_servers", "give at least one address, such as 127.0.0.1:9876")
    return addresses


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Everything that can be set on a client; the defaults are those of the Java client.

    Times of one request end in ``timeout_ms``, periods in ``interval_ms``.
    """

    name_servers: tuple[str, ...]
    #: Part of the name under which broadcasting offsets are kept; a client's own id is unique.
    instance_name: str = "DEFAULT"
    #: Replaces the generated ``ip@pid#number``; must be unique among the members of a group.
    client_id: str = ""
    request_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000

    route_poll_interval_ms: int = 30_000
    #: A topic that nobody asked for so long is no longer polled.
    route_expiry_ms: int = 600_000
    heartbeat_interval_ms: int = 30_000

    producer_group: str = "COMETMQ_PRODUCER"
    #: For a send with all its retries.
    send_timeout_ms: int = 3_000
    #: Further attempts after the first, on another broker where there is one.
    send_retries: int = 2
    compress_over_bytes: int = 4_096
    compress_level: int = 5
    max_message_bytes: int = 4 * 1024 * 1024
    #: A batch is split so that no part is larger.
    max_batch_bytes: int = 1024 * 1024
    #: Queues asked for when a topic is created by its first message.
    default_topic_queues: int = 4
    #: Avoid brokers for a while after they were slow or failed.
    send_latency_fault: bool = False

    pull_batch_messages: int = 32
    #: How long a broker may hold a pull that finds nothing.
    pull_suspend_ms: int = 15_000
    pull_timeout_ms: int = 30_000
    #: Pause of a queue whose messages wait for the application.
    pull_flow_pause_ms: int = 50
    pull_error_pause_ms: int = 3_000
    max_queue_messages: int = 1_000
    max_queue_bytes: int = 100 * 1024 * 1024
    max_queue_span: int = 2_000
    rebalance_interval_ms: int = 20_000
    offset_persist_interval_ms: int = 5_000
    lock_renewal_interval_ms: int = 20_000
    #: A lock that was not renewed for so long is no longer believed.
    lock_expiry_ms: int = 30_000
    #: A message that an application holds for longer is sent back to be retried.
    consume_timeout_ms: int = 15 * 60_000
    #: Pause before an ordered queue gives a failed message again.
    ordered_retry_pause_ms: int = 1_000
    #: Pause before a message whose send-back failed is given again.
    local_retry_pause_ms: int = 5_000
    #: Where broadcasting consumers keep their offsets.
    offsets_dir: Path = field(default_factory=lambda: Path.home() / ".rocketmq_offsets")
