"""What a worker process of Spark has loaded lives as long as it does, and is not looked at again.

Between two tasks such a process looks through all its objects for garbage, 25 ms for the modules of
Spark and Arrow alone, and only then takes the next task.
"""

from __future__ import annotations

import gc


def keep_loaded() -> None:
    """Leave what exists now out of every later look for garbage, once a process."""
    if not gc.get_freeze_count():
        gc.freeze()
