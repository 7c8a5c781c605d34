"""How much faster two cores of Spark look through a whole store than one process does.

Writes a store of 1 KiB records without seals, and looks through it in alternating rounds: by
``cometmq store verify`` in one process, and by the job ``audit`` on ``local[2]`` after one round to
warm up. One JSON line: seconds of both, their ratio (1.5 is wanted), gigabytes a second.
Run: ``.venv/bin/python -m benchmarks.spark_audit [--gib 3] [--file-mib 256] [--rounds 2]``
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.store_verify import write_store
from cometmq.spark.jobs import audit
from cometmq.spark.session import local_session
from cometmq.store.config import StoreConfig
from cometmq.store.tools.verify import verify

BODY_BYTES = 900


def timed(work: Callable[[], bool]) -> float:
    """Return the duration in seconds. The store must be without findings."""
    begun = time.perf_counter()
    assert work()
    return time.perf_counter() - begun


def main() -> None:
    """Write the store, check it, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=3)
    parser.add_argument("--file-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-audit-") as folder:
        root = Path(folder)
        total_bytes = int(given.gib * (1 << 30))
        write_store(root, total_bytes, given.file_mib << 20, BODY_BYTES)
        shutil.rmtree(root / "cometmq-seals", ignore_errors=True)
        spark = local_session("audit", cores=given.cores)
        options = audit.AuditOptions(stores=(str(root),))
        config = StoreConfig(store_path_root_dir=str(root))
        by_spark: list[float] = []
        alone: list[float] = []
        for number in range(given.rounds + 1):
            seconds = timed(lambda: audit.run(spark, options).ok)
            if number:
                by_spark.append(seconds)
                alone.append(timed(lambda: verify(config, processes=1).is_sound))
        spark.stop()
        fact = {
            "case": "audit",
            "gb": round(total_bytes / 1e9, 1),
            "one_process_s": round(min(alone), 2),
            "spark_s": round(min(by_spark), 2),
            "ratio": round(min(alone) / min(by_spark), 2),
            "gb_per_s": round(total_bytes / 1e9 / min(by_spark), 2),
        }
        print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    main()
