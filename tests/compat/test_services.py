"""The service recipes against Java brokers: a stop by SIGTERM, and exactly once into PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from cometmq.testing.postgres import PostgresMissing, running_postgres
from examples.services import exactly_once
from tests.compat.conftest import Target
from tests.examples.services.test_exactly_once import fenced
from tests.examples.services.test_worker import new_ledger, stop_twice


async def test_sigterm_finishes_what_was_begun(target: Target, tmp_path: Path) -> None:
    await stop_twice(target.namesrv, new_ledger(tmp_path))


async def test_a_fenced_consumer_writes_each_message_once(target: Target) -> None:
    try:
        with running_postgres() as conninfo:
            with psycopg.connect(conninfo) as database:
                database.execute(exactly_once.TABLES)
            await fenced(target.namesrv, conninfo)
    except PostgresMissing as error:
        pytest.skip(f"needs PostgreSQL: {error}")
