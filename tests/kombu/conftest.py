"""Connections of kombu to a broker that all tests of a session share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import kombu
import pytest

import cometmq.kombu
from cometmq.testing.cluster import Cluster

Connect = Callable[..., kombu.Connection]


@pytest.fixture
def connect(cometmq_session_cluster: Cluster) -> Iterator[Connect]:
    """Open connections, with transport options."""
    assert cometmq.kombu.Transport.driver_type == "cometmq"
    with ExitStack() as stack:

        def open_one(**options: Any) -> kombu.Connection:
            url = f"cometmq://{cometmq_session_cluster.namesrv}//"
            connection = kombu.Connection(url, transport_options=options)
            return stack.enter_context(connection)

        yield open_one


@pytest.fixture
def name() -> str:
    """A queue of the test's own, with characters that topics may not have."""
    return f"tasks.{uuid.uuid4().hex[:8]}@här"
