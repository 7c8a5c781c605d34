"""Options of a connection, from its URL and from kombu's ``transport_options``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from cometmq.client.config import ClientConfig, make_config
from cometmq.core.errors import SettingsError
from cometmq.net.outgoing import TlsOptions
from cometmq.protocol.acl import Credentials

if TYPE_CHECKING:
    from kombu import Connection

DEFAULT_PORT: Final = 9876
#: Where a task waits for its ETA: in the broker's timers, in its delay levels, or in the worker.
Delays = Literal["timers", "levels", "worker"]
_DELAYS: Final = ("timers", "levels", "worker")
#: Upper bound of a time in seconds: a year.
_LONGEST_S: Final = 365 * 86_400
#: Most messages that are pulled from a queue after its oldest unacknowledged one.
_SPAN: Final = 100_000
#: Fields of TlsOptions by kombu's names, those of URLs and those of ``broker_use_ssl``.
_TLS_NAMES: Final = {
    "ssl_ca_certs": "ca_path",
    "ssl_certfile": "cert_path",
    "ssl_keyfile": "key_path",
    "ca_certs": "ca_path",
    "certfile": "cert_path",
    "keyfile": "key_path",
}


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options of the transport.

    ``group`` is the prefix of the consumer groups; ``queues`` is the number of queues of a new
    topic, and so the most workers that can share it; ``priority_steps`` are the least priorities of
    the steps, each of which has its own topic.
    """

    config: ClientConfig
    group: str = "celery"
    queues: int = 8
    priority_steps: tuple[int, ...] = (0,)
    delays: Delays = "timers"
    transient_topic: str = "kombu-transient"

    def step_of(self, priority: int) -> int:
        """Return the step that a priority belongs to."""
        return max((step for step in self.priority_steps if step <= priority), default=0)


def options_of(connection: Connection) -> Options:
    """Read the options of a kombu connection.

    Options that are neither kombu's nor the transport's own are settings of the client
    (ClientConfig). Raises SettingsError for an unknown option or an invalid value.
    """
    given = dict(connection.transport_options or {})
    for name in ("polling_interval", "confirm_publish", "max_retries", "interval_start"):
        given.pop(name, None)
    for name in ("interval_step", "interval_max", "errback", "client_properties"):
        given.pop(name, None)
    own = {name: given.pop(name) for name in _OWN if name in given}
    _check_own(own)
    steps = {0, *own.pop("priority_steps", ())}
    host = f"{connection.hostname or 'localhost'}:{connection.port or DEFAULT_PORT}"
    servers = given.pop("name_servers", host)
    visible_s = given.pop("visibility_timeout", 3_600)
    if not _is_number(visible_s) or not 0 < visible_s < _LONGEST_S:
        raise SettingsError("visibility_timeout", f"{visible_s!r} is no number of seconds")
    settings: dict[str, Any] = {
        "producer_group": "KOMBU_PRODUCER",
        "consume_timeout_ms": int(visible_s * 1_000),
        "max_queue_span": _SPAN,
        "offset_persist_interval_ms": 1_000,
        "send_latency_fault": True,
        "send_attempt_timeout_ms": 1_500,
        **given,
    }
    vhost = (connection.virtual_host or "/").strip("/")
    if vhost:
        settings.setdefault("namespace", vhost)
    if connection.userid:
        settings.setdefault(
            "credentials", Credentials(connection.userid, connection.password or "")
        )
    if connection.ssl:
        settings.setdefault("tls", tls_of(connection.ssl))
    return Options(make_config(servers, settings), priority_steps=tuple(sorted(steps)), **own)


def _check_own(own: Mapping[str, Any]) -> None:
    """Raise SettingsError for an invalid value of the transport's own options."""
    if own.get("delays", "timers") not in _DELAYS:
        raise SettingsError("delays", f"{own['delays']!r} is not one of {', '.join(_DELAYS)}")
    for name in ("group", "transient_topic"):
        if not isinstance(own.get(name, ""), str):
            raise SettingsError(name, f"{own[name]!r} is no text")
    queues, steps = own.get("queues", 1), own.get("priority_steps", ())
    if type(queues) is not int or queues < 1:
        raise SettingsError("queues", f"{queues!r} is no number of queues")
    if not isinstance(steps, list | tuple | range | set) or any(
        type(step) is not int or step < 0 for step in steps
    ):
        raise SettingsError("priority_steps", f"{steps!r} is no list of priorities")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_OWN: Final = ("group", "queues", "priority_steps", "delays", "transient_topic")


def tls_of(given: bool | Mapping[str, Any]) -> TlsOptions:
    """Convert kombu's option ``ssl``. Raises SettingsError for an unknown name in it."""
    if given is True or not isinstance(given, Mapping):
        return TlsOptions()
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TLS_NAMES:
            fields[_TLS_NAMES[name]] = value
        elif name in ("ssl_check_hostname", "check_hostname"):
            fields["check_host_name"] = bool(value)
        elif name in ("ssl_cert_reqs", "cert_reqs"):
            # Only ssl.CERT_NONE, which is 0, turns verification off.
            fields["verify"] = bool(value)
        else:
            raise SettingsError("ssl", f"{name!r} is not one of {', '.join(_TLS_NAMES)}")
    return TlsOptions(**fields)
