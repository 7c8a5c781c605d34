"""The shop's outbox, and its client: one a process, opened when it is first used."""

import atexit

from django.conf import settings

import cometmq

outbox = cometmq.SqliteOutbox(settings.DATABASES["default"]["NAME"])


_client = cometmq.BlockingClient(settings.NAME_SERVER)
atexit.register(_client.close)


def client() -> cometmq.BlockingClient:
    """Return the client of this process, for any of its threads. A server that forks workers must
    not call it before."""
    _client.start()
    return _client
