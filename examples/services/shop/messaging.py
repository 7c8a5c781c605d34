"""The shop's outbox, and its client: one a process, opened when it is first used."""

import atexit
from functools import cache

from django.conf import settings

import cometmq

outbox = cometmq.SqliteOutbox(settings.DATABASES["default"]["NAME"])


@cache
def client() -> cometmq.BlockingClient:
    """Return the client of this process. A server that forks workers must not call it before."""
    opened = cometmq.BlockingClient(settings.NAME_SERVER)
    opened.start()
    atexit.register(opened.close)
    return opened
