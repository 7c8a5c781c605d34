"""Tasks a second of Celery, through CometMQ and through other transports of kombu.

    python -m benchmarks.celery_tasks [--tasks 2000] [--redis URL]

For each transport: one process sends tasks that do nothing, then a worker (threads, one) runs them.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker

import cometmq.kombu
from cometmq.testing.cluster import ProcessCluster

assert cometmq.kombu.Transport.driver_type == "cometmq"


def measure(url: str, tasks: int, options: dict[str, Any]) -> tuple[float, float]:
    """Return sent and processed tasks a second."""
    app = Celery(f"bench-{url}", broker=url)
    app.conf.update(
        broker_transport_options=options, task_ignore_result=True, worker_hijack_root_logger=False
    )
    done = threading.Event()
    left = [tasks]

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    def nothing() -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    begun = time.monotonic()
    for _ in range(tasks):
        nothing.delay()
    sent = tasks / (time.monotonic() - begun)
    begun = time.monotonic()
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        done.wait(120)
    return sent, (tasks - left[0]) / (time.monotonic() - begun)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2_000)
    parser.add_argument("--redis", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        places = {
            name: str(Path(folder, "queue")) for name in ("data_folder_in", "data_folder_out")
        }
        Path(folder, "queue").mkdir()
        Path(folder, "control").mkdir()
        with ProcessCluster(Path(folder)) as cluster:
            targets: list[tuple[str, dict[str, Any]]] = [
                ("memory://", {}),
                (f"cometmq://{cluster.namesrv}//", {}),
                ("filesystem://", {**places, "control_folder": str(Path(folder, "control"))}),
            ]
            if arguments.redis:
                targets.append((arguments.redis, {}))
            for url, options in targets:
                sent, processed = measure(url, arguments.tasks, options)
                print(f"{url:32} sent {sent:8,.0f}/s  processed {processed:8,.0f}/s", flush=True)


if __name__ == "__main__":
    main()
