"""Services as processes of their own, a real broker and a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cometmq.testing.postgres import PostgresMissing, running_postgres
from tests.architecture.rules import ROOT

#: Twice the grace period of a pod: a test machine may be busy.
GRACE_S = 60


@contextmanager
def service(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program as a service; it is killed at the end, if not before."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def terminate(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGTERM as Kubernetes does; return the exit code and what was printed.

    It must have done something by then that only comes after it handles the signal.
    """
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=GRACE_S)
    return process.returncode, output


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The conninfo of a server that these tests share."""
    try:
        with running_postgres() as conninfo:
            yield conninfo
    except PostgresMissing as error:
        pytest.skip(f"needs PostgreSQL: {error}")
