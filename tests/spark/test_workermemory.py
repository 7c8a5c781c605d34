"""A worker's modules are left alone by its garbage collector; what comes later is not. Freed memory
stays with it."""

import platform
import subprocess
import sys

import pytest

CODE = """
import gc, weakref
from cometmq.spark import workermemory
workermemory.keep_loaded()
kept = gc.get_freeze_count()
class Node: pass
node = Node(); node.itself = node
seen = weakref.ref(node)
del node
workermemory.keep_loaded()
gc.collect()
print(kept > 1000, gc.get_freeze_count() == kept, seen() is None)
"""

FROZEN_BEFORE = """
import gc
from cometmq.spark import workermemory
gc.freeze()
kept = gc.get_freeze_count()
later = [[] for _ in range(1_000)]
workermemory.keep_loaded()
print(kept > 1000, kept - 100 < gc.get_freeze_count() <= kept)
"""

FREED = """
import resource
from cometmq.spark import workermemory
workermemory.keep_loaded()
def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        pieces = [bytes(b"x" * (2 << 20)) for _ in range(4)]
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
new_pages()
print(new_pages())
"""


def said(code: str) -> list[str]:
    """What a process of its own prints: in this one others have frozen objects, which may end."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_what_is_made_later_is_still_collected() -> None:
    assert said(CODE) == ["True", "True", "True"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others free in other ways")
def test_freed_memory_is_there_for_the_next_block() -> None:
    assert int(said(FREED)[0]) < 2_000


def test_another_freeze_is_neither_undone_nor_made_larger() -> None:
    assert said(FROZEN_BEFORE) == ["True", "True"]
