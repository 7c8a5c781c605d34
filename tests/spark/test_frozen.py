"""A worker's modules are left alone by its garbage collector; what comes later is not."""

import gc
import subprocess
import sys

from cometmq.spark import frozen

CODE = """
import gc, weakref
from cometmq.spark import frozen
frozen.keep_loaded()
kept = gc.get_freeze_count()
class Node: pass
node = Node(); node.itself = node
seen = weakref.ref(node)
del node
frozen.keep_loaded()
gc.collect()
print(kept > 1000, gc.get_freeze_count() == kept, seen() is None)
"""


def test_what_is_made_later_is_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


def test_another_freeze_is_not_undone() -> None:
    before = gc.get_freeze_count()
    try:
        frozen.keep_loaded()
        assert gc.get_freeze_count() >= max(before, 1)
    finally:
        if not before:
            gc.unfreeze()
