"""What a worker process of Spark has loaded lives as long as it does, and is not looked at again.
The memory of one block of records is there for the next.

Between two tasks such a process looks through all its objects for garbage, 25 ms for the modules of
Spark and Arrow alone, and only then takes the next task. And glibc gives freed memory back to the
system as soon as it is more than twice the largest piece that was ever freed: then most of what a
block takes comes anew, page by page, which costs more than to decode it.
"""

from __future__ import annotations

import gc
import logging
from typing import Final

from cometmq.speedups import WHY_PLAIN

log = logging.getLogger(__name__)

KEPT_BYTES: Final = 48 << 20
"""So much freed memory a process keeps: what a few blocks take. glibc allows 64 MiB at most."""


def keep_loaded() -> None:
    """Leave what exists now out of every later look for garbage, and keep freed memory, once a
    process; where the core is plain Python, a line says so."""
    if not gc.get_freeze_count():
        gc.freeze()
        bytearray(KEPT_BYTES // 2)
        if WHY_PLAIN:
            log.warning("plain_core reason=%r", WHY_PLAIN)
