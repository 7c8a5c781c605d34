"""Settings of a client: whom it asks, how long it waits, what it may hold in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cometmq.core.errors import SettingsError
from cometmq.message.names import TRACE_TOPIC

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
    """Everything that can be set on a client; the defaults are those of the Java client, and
    :meth:`recommended` has better ones.

    Times of one request end in ``timeout_ms``, periods in ``interval_ms``.
    """

    name_servers: tuple[str, ...]
    #: Part of the name under which broadcasting offsets are kept; a client's own id is unique.
    instance_name: str = "DEFAULT"
    #: Replaces the generated ``ip@pid#number``; must be unique among the members of a group.
    client_id: str = ""
    #: Topics and groups are this tenant's own: brokers know them as ``namespace%name``.
    namespace: str = ""
    request_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000

    route_poll_interval_ms: int = 30_000
    #: A topic that nobody asked for so long is no longer polled.
    route_expiry_ms: int = 600_000
    heartbeat_interval_ms: int = 30_000

    #: Tell the trace topic who sent and who consumed each message, when and how it went.
    trace: bool = False
    trace_topic: str = TRACE_TOPIC

    producer_group: str = "COMETMQ_PRODUCER"
    #: For a send with all its retries.
    send_timeout_ms: int = 3_000
    #: Further attempts after the first, on another broker where there is one.
    send_retries: int = 2
    #: What one attempt may take of that time when another can follow it; 0 is all of it.
    send_attempt_timeout_ms: int = 0
    #: Try another broker also when a message is stored, but not as safely as it should be; it is
    #: then stored twice.
    retry_not_stored_ok: bool = False
    compress_over_bytes: int = 4_096
    compress_level: int = 5
    max_message_bytes: int = 4 * 1024 * 1024
    #: A batch is split so that no part is larger.
    max_batch_bytes: int = 1024 * 1024
    #: Queues asked for when a topic is created by its first message.
    default_topic_queues: int = 4
    #: Avoid brokers for a while after they were slow or failed; ask those that could not be reached
    #: whether they are back.
    send_latency_fault: bool = False
    probe_interval_ms: int = 3_000
    probe_timeout_ms: int = 200

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
    #: Messages of all queues together that a consumer which polls may hold.
    max_polled_messages: int = 10_000
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
    offsets_dir: Path | str = field(default_factory=lambda: Path.home() / ".rocketmq_offsets")

    @classmethod
    def recommended(cls, name_servers: str | Iterable[str], **changes: Any) -> ClientConfig:
        """Settings for new programs, with ``changes``: a broker that is slow, silent or away costs
        one attempt, and is then left alone until it is well.

        Raises SettingsError for a setting that does not exist.
        """
        settings = {"send_latency_fault": True, "send_attempt_timeout_ms": 1_500, **changes}
        return make_config(name_servers, settings)


def make_config(name_servers: str | Iterable[str], settings: Mapping[str, Any]) -> ClientConfig:
    """A configuration from settings by name. Raises SettingsError for one that does not exist."""
    known = {field.name for field in fields(ClientConfig)}
    for name in settings:
        if name not in known:
            raise SettingsError(name, "the client has no such setting")
    return ClientConfig(parse_name_servers(name_servers), **settings)
