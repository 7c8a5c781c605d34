"""Celery application of the tests, run by real workers; COMETMQ_TEST_URL names the broker.

With COMETMQ_TEST_ENDS_WITH_INPUT a worker and the processes of its pool end with its standard
input: a killed test run leaves none.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from celery import Celery, Task

import cometmq.kombu

assert cometmq.kombu.Transport.driver_type == "cometmq"

app = Celery("tests", broker=os.environ.get("COMETMQ_TEST_URL", "cometmq://"))
app.conf.update(
    result_backend=os.environ.get("COMETMQ_TEST_RESULTS"),
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_acks_on_failure_or_timeout=True,
    broker_transport_options={"offset_persist_interval_ms": 200},
)


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if "COMETMQ_TEST_ENDS_WITH_INPUT" in os.environ:
    assert os.getpgrp() == os.getpid(), "the worker needs a process group of its own"
    threading.Thread(target=_end_with_input, name="end with input", daemon=True).start()


@app.task  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@app.task  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    """Add all."""
    return sum(numbers)


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def third_time(self: Task) -> int:
    """Succeed at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def slow(path: str, seconds: float) -> None:
    """Write a line at the begin, and one at the end."""
    _write(path, "begun")
    threading.Event().wait(seconds)
    _write(path, "done")


def _write(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")
