"""Memory settings of Spark's Python worker processes: garbage collection and the C heap.

Between two tasks a worker runs a full garbage collection, which takes 25 ms for the modules of
Spark and Arrow alone. Frozen objects are excluded from it. glibc returns freed memory to the system
once it exceeds twice the largest block ever freed. Without a larger limit, most memory of the next
block of records is mapped page by page again, which costs more than decoding the block.
"""

from __future__ import annotations

import gc
import logging
from typing import Final

from cometmq.speedups import WHY_PLAIN

log = logging.getLogger(__name__)

KEPT_BYTES: Final = 48 << 20
"""Freed memory that a process keeps, in bytes: enough for a few blocks. glibc allows 64 MiB at
most."""


def keep_loaded() -> None:
    """Exempt the objects loaded so far from garbage collection and keep freed memory.

    Only the first call in a process has an effect. It also logs a warning if the compiled core is
    not in use.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        # Freeing a block of this size raises glibc's trim threshold to twice its size, KEPT_BYTES.
        bytearray(KEPT_BYTES // 2)
        if WHY_PLAIN:
            log.warning("plain_core reason=%r", WHY_PLAIN)
