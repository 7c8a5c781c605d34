"""Processes below one, as a test that ends some of them sees them."""

import subprocess
import sys
import time

from tests.spark.processes import below, end, end_group

NESTED = "import subprocess,sys; subprocess.run([sys.executable, '-c', 'input()'])"


def test_a_tree_of_processes() -> None:
    root = subprocess.Popen(
        [sys.executable, "-c", NESTED], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 30
        while len(below(root.pid)) < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        (child,) = below(root.pid)
        assert child.parent == root.pid
        assert child.command.endswith("input() ")
        end(child.pid)
        assert root.wait(30) == 0
        assert below(root.pid) == []
        end(root.pid)
    finally:
        end_group(root.pid)
        root.wait(30)
        assert root.stdin is not None
        root.stdin.close()
