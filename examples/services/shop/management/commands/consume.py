"""``manage.py consume``: writes an invoice for each order until SIGTERM."""

import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import close_old_connections

import cometmq
from examples.services.shop.models import Invoice

#: Less than the grace period of what stops this process.
DRAIN_MS = 25_000


def invoice(message: cometmq.MessageView) -> None:
    """Write the invoice of an order, once. Runs in threads of the client."""
    try:
        Invoice.objects.get_or_create(number=int(message.body))
    finally:
        close_old_connections()  # a thread has its own connection; CONN_MAX_AGE holds


class Command(BaseCommand):
    help = "Write an invoice for each order until SIGTERM."

    def handle(self, *args: Any, **options: Any) -> None:
        with cometmq.BlockingClient(settings.NAME_SERVER) as client:
            group = f"{settings.TOPIC}-invoices"
            subscription = client.subscribe(settings.TOPIC, group=group, start="first")
            # Drains the subscriptions that are there: after this one is.
            signal.signal(signal.SIGTERM, lambda *_: client.drain(timeout_ms=DRAIN_MS))
            subscription.run(invoice)  # returns when the subscription is closed
