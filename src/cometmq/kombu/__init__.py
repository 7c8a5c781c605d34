"""Transport of kombu: Celery and other programs of kombu run on RocketMQ.

``import cometmq.kombu`` makes kombu know URLs that begin with ``cometmq://``; without the import,
pass ``transport="cometmq.kombu:Transport"``, which Celery calls ``broker_transport``.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from cometmq.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES.setdefault("cometmq", "cometmq.kombu:Transport")
