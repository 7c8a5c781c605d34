"""A transport for kombu, with which Celery and other users of kombu run on RocketMQ.

``import cometmq.kombu`` registers the URL scheme ``cometmq://`` with kombu. Without the import,
pass ``transport="cometmq.kombu:Transport"``; Celery's setting for it is ``broker_transport``.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from cometmq.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES.setdefault("cometmq", "cometmq.kombu:Transport")
