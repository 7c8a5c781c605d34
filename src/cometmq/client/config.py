"""Settings of a client: addresses, timeouts, memory limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.core.errors import SettingsError
from cometmq.message.names import TRACE_TOPIC
from cometmq.net.outgoing import ConnectOptions

if TYPE_CHECKING:
    from cometmq.net.outgoing import TlsOptions
    from cometmq.protocol.acl import Credentials

#: Types of settings by annotation, and their names in errors.
_TYPES: dict[str, Any] = {"int": int, "float": int | float, "str": str, "bool": bool}
_ARTICLES = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "True or False"}
_SEPARATORS = re.compile(r"[;,\s]+")


def parse_name_servers(text: str | Iterable[str]) -> tuple[str, ...]:
    """Split ``a:9876;b:9876`` into addresses, in the given order.

    Commas and blanks are separators too. A sequence has one address per item. Raises SettingsError
    if there is no address.
    """
    if not _is_text_or_texts(text):
        raise SettingsError(
            "name_servers", f"{text!r} is not an address such as '127.0.0.1:9876', or several"
        )
    parts = _SEPARATORS.split(text) if isinstance(text, str) else list(text)
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise SettingsError("name_servers", "give at least one address, such as 127.0.0.1:9876")
    return addresses


def _is_text_or_texts(given: object) -> bool:
    if isinstance(given, str):
        return True
    # An iterator is read only once, later.
    is_sequence = isinstance(given, Iterable) and not isinstance(given, bytes)
    return is_sequence and not (
        isinstance(given, list | tuple) and any(not isinstance(each, str) for each in given)
    )


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """All settings of a client.

    The defaults are those of the Java client; :meth:`recommended` has better ones. The names of
    time limits end in ``timeout_ms``, those of periods in ``interval_ms``.
    """

    name_servers: tuple[str, ...]
    #: Part of the path of the offset file of broadcasting consumers, so that a restarted program
    #: finds the file again. The client id is different in every process.
    instance_name: str = "DEFAULT"
    #: Replaces the generated ``ip@pid#number``; must be unique among the members of a group.
    client_id: str = ""
    #: Tenant of all topics and groups: brokers know them as ``namespace%name``.
    namespace: str = ""
    request_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000
    #: TLS of all connections; None means no TLS.
    tls: TlsOptions | None = None
    #: Account that signs all requests, for brokers with access control.
    credentials: Credentials | None = None

    route_poll_interval_ms: int = 30_000
    #: The route of a topic that was not used for this long is no longer polled.
    route_expiry_ms: int = 600_000
    heartbeat_interval_ms: int = 30_000

    #: Write message traces (producer, consumer, times, result) to the trace topic.
    trace: bool = False
    trace_topic: str = TRACE_TOPIC

    producer_group: str = "COMETMQ_PRODUCER"
    #: Time limit of a send, all its retries included.
    send_timeout_ms: int = 3_000
    #: Attempts after the first one; each goes to another broker if there is one.
    send_retries: int = 2
    #: Time limit of an attempt, except the last one; 0 means all the time that is left.
    send_attempt_timeout_ms: int = 0
    #: Also try another broker if a message is stored, but less safely than the broker's flush or
    #: replication settings require. The message is then stored twice.
    retry_not_stored_ok: bool = False
    compress_over_bytes: int = 4_096
    compress_level: int = 5
    max_message_bytes: int = 4 * 1024 * 1024
    #: Batches are split so that no part is larger.
    max_batch_bytes: int = 1024 * 1024
    #: Collect single sends into batches: time for which a message may wait for others while a batch
    #: is in flight. 0 means off.
    linger_ms: float = 0
    #: Size of such a batch, in bytes and in messages, at which it is sent.
    linger_batch_bytes: int = 64 * 1024
    linger_batch_messages: int = 512
    #: Limit of the bytes of messages that wait or are in flight; at the limit sends wait for room.
    linger_buffer_bytes: int = 32 * 1024 * 1024
    #: Queues requested for a topic that its first message creates.
    default_topic_queues: int = 4
    #: Avoid a broker for a while after it was slow or failed, and probe unreachable brokers until
    #: they respond.
    send_latency_fault: bool = False
    probe_interval_ms: int = 3_000
    probe_timeout_ms: int = 200

    pull_batch_messages: int = 32
    #: Time for which a broker may hold a pull that finds no messages (long polling).
    pull_suspend_ms: int = 15_000
    pull_timeout_ms: int = 30_000
    #: Pause before a queue whose prefetch limits are reached is checked again.
    pull_flow_pause_ms: int = 50
    pull_error_pause_ms: int = 3_000
    max_queue_messages: int = 1_000
    max_queue_bytes: int = 100 * 1024 * 1024
    max_queue_span: int = 2_000
    #: Prefetched messages that a polling consumer may hold, all queues together.
    max_polled_messages: int = 10_000
    rebalance_interval_ms: int = 20_000
    offset_persist_interval_ms: int = 5_000
    lock_renewal_interval_ms: int = 20_000
    #: A lock that was not renewed for this long counts as lost.
    lock_expiry_ms: int = 30_000
    #: A message that the application holds for longer is sent back to the broker for a retry.
    consume_timeout_ms: int = 15 * 60_000
    #: Pause before an ordered queue delivers a failed message again.
    ordered_retry_pause_ms: int = 1_000
    #: Pause before a message that could not be sent back is delivered again.
    local_retry_pause_ms: int = 5_000
    #: Directory in which broadcasting consumers store their offsets.
    offsets_dir: Path | str = field(default_factory=lambda: Path.home() / ".rocketmq_offsets")

    def __post_init__(self) -> None:
        for each in fields(self):
            wanted = _TYPES.get(str(each.type))
            value = getattr(self, each.name)
            if wanted is None or (isinstance(value, wanted) and type(value) is not bool):
                continue
            if wanted is bool and type(value) is bool:
                continue
            raise SettingsError(each.name, f"{value!r} is not {_ARTICLES[str(each.type)]}")
        if not (isfinite(self.linger_ms) and self.linger_ms >= 0):
            raise SettingsError("linger_ms", f"{self.linger_ms!r} is no time; 0 is off")
        for name in ("linger_batch_bytes", "linger_batch_messages", "linger_buffer_bytes"):
            if getattr(self, name) < 1:
                raise SettingsError(name, f"{getattr(self, name)!r} is too small for any message")

    @property
    def connect(self) -> ConnectOptions:
        """Options of outgoing connections."""
        return ConnectOptions(
            tls=self.tls,
            credentials=self.credentials,
            connect_timeout_ms=self.connect_timeout_ms,
        )

    @classmethod
    def recommended(cls, name_servers: str | Iterable[str], **changes: Any) -> ClientConfig:
        """Return recommended settings for new programs, with ``changes`` applied.

        A broker that is slow, silent or down costs one attempt and is then avoided until it
        recovers. Raises SettingsError for an unknown setting.
        """
        settings = {"send_latency_fault": True, "send_attempt_timeout_ms": 1_500, **changes}
        return make_config(name_servers, settings)


def make_config(name_servers: str | Iterable[str], settings: Mapping[str, Any]) -> ClientConfig:
    """Build a configuration from settings by name. Raises SettingsError for an unknown name."""
    known = {field.name for field in fields(ClientConfig)}
    for name in settings:
        if name not in known:
            raise SettingsError(name, "not a setting of the client")
    return ClientConfig(parse_name_servers(name_servers), **settings)
