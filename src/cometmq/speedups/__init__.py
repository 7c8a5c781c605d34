"""The hot path, compiled where it could be built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("COMETMQ_PURE") == "1":
    CORE = "plain"
    from cometmq.speedups.plain.sends import QueueState, WriteBatch, put_keys
else:
    CORE = "compiled"
    from cometmq.speedups.compiled.sends import QueueState, WriteBatch, put_keys

__all__ = ["CORE", "QueueState", "WriteBatch", "put_keys"]
