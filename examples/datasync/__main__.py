"""``make data-sync``: PostgreSQL, a broker, the run, and a comparison of the copies row by row.

python -m examples.datasync [--changes N] [--folder FOLDER]
"""

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random

from cometmq.admin.node import NodeProcess
from cometmq.spark.session import local_session
from cometmq.testing.postgres import running_postgres
from examples.datasync.copies import Places
from examples.datasync.pipeline import catch_up
from examples.datasync.run import run
from examples.demo.script import Script, iso_regions

USERS = 2_000
SEED = 7
SETTINGS = {"mappedFileSizeCommitLog": str(64 * 1024 * 1024)}


def main(changes: int, folder: Path) -> bool:
    """Run everything. Return whether all copies are equal."""
    node = NodeProcess(folder / "store", settings=SETTINGS)
    node.start()
    try:
        with running_postgres() as server:
            places = Places(server, folder)
            script = Script(iso_regions(Random(SEED)), USERS, SEED)
            outcome = run(
                places, node.namesrv, script, changes,
                lambda: catch_up(local_session("datasync"), node.namesrv, places),
            )  # fmt: skip
    finally:
        node.terminate()
    equal = all(copy.equal for copy in outcome.copies)
    print("all copies are equal" if equal else "the copies are NOT equal")
    return equal


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.datasync")
    parser.add_argument("--changes", type=int, default=4_000, help="after the first load")
    parser.add_argument("--folder", type=Path, help="keep the Delta table and the logs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="datasync-") as place:
        kept = options.folder or Path(place)
        kept.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if main(options.changes, kept) else 1)
