"""The core: functions and classes of the hot path, compiled where possible.

``plain`` defines each of them in Python, and ``compiled`` in Cython with the same results. When
this module is imported, it chooses one of the two for all names: the compiled core if it can be
imported completely, otherwise plain Python. ``COMETMQ_PURE=1`` in the environment forces plain
Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Literal

from cometmq.speedups.plain.access import AccessCache
from cometmq.speedups.plain.batches import append_batch, pack_batch, place_batch
from cometmq.speedups.plain.columns import RecordColumns
from cometmq.speedups.plain.hashing import index_hashes, java_hash, put_keys
from cometmq.speedups.plain.match import Op, Program, in_order, match_records
from cometmq.speedups.plain.messages import Records, cut_records
from cometmq.speedups.plain.pullanswers import (
    PullAnswers,
    PullCounter,
    PullPlan,
    PullPosition,
    PullTotals,
    answer_frame,
    read_pull,
)
from cometmq.speedups.plain.pulls import is_record, take_records
from cometmq.speedups.plain.requests import (
    batch_body,
    batch_results,
    send_frame,
    settle_plain,
    unique_keys,
)
from cometmq.speedups.plain.sends import Outlet, SendBatch, send_answers
from cometmq.speedups.plain.syncthread import SyncThread
from cometmq.speedups.plain.transactions import Half, OpenTransactions, TransactionBatch
from cometmq.speedups.plain.walk import WALKED_COLUMNS, Walked, check_records, walk
from cometmq.speedups.plain.writebatch import KnownQueues, QueueState, WriteBatch

__all__ = [
    "CORE",
    "DESCRIPTION",
    "NAMES",
    "WALKED_COLUMNS",
    "WHY_PLAIN",
    "AccessCache",
    "Half",
    "KnownQueues",
    "Op",
    "OpenTransactions",
    "Outlet",
    "Program",
    "PullAnswers",
    "PullCounter",
    "PullPlan",
    "PullPosition",
    "PullTotals",
    "QueueState",
    "RecordColumns",
    "Records",
    "SendBatch",
    "SyncThread",
    "TransactionBatch",
    "Walked",
    "WriteBatch",
    "answer_frame",
    "append_batch",
    "batch_body",
    "batch_results",
    "check_records",
    "cut_records",
    "in_order",
    "index_hashes",
    "is_record",
    "java_hash",
    "match_records",
    "pack_batch",
    "place_batch",
    "put_keys",
    "read_pull",
    "send_answers",
    "send_frame",
    "settle_plain",
    "take_records",
    "unique_keys",
    "walk",
]

#: Names that exist in both ``plain`` and ``compiled``, by module.
NAMES = {
    "access": ("AccessCache",),
    "batches": ("append_batch", "pack_batch", "place_batch"),
    "columns": ("RecordColumns",),
    "hashing": ("index_hashes", "java_hash", "put_keys"),
    "match": ("Program", "match_records"),
    "messages": ("Records", "cut_records"),
    "pullanswers": (
        "PullAnswers",
        "PullCounter",
        "PullPlan",
        "PullPosition",
        "PullTotals",
        "answer_frame",
        "read_pull",
    ),
    "pulls": ("is_record", "take_records"),
    "requests": ("batch_body", "batch_results", "send_frame", "settle_plain", "unique_keys"),
    "sends": ("Outlet", "SendBatch", "send_answers"),
    "syncthread": ("SyncThread",),
    "transactions": ("Half", "OpenTransactions", "TransactionBatch"),
    "walk": ("check_records", "walk"),
    "writebatch": ("KnownQueues", "QueueState", "WriteBatch"),
}


def _compiled() -> dict[str, object]:
    """Return the functions and classes of the compiled core by name.

    Raises ImportError if one is missing.
    """
    found: dict[str, object] = {}
    for module_name, names in NAMES.items():
        module = import_module(f"cometmq.speedups.compiled.{module_name}")
        for name in names:
            if not hasattr(module, name):
                raise ImportError(f"{module.__file__} is of another version: it has no {name}")
            found[name] = getattr(module, name)
    return found


def _choose() -> str:
    """Replace the plain functions and classes in this module with the compiled ones.

    Returns the reason why plain Python runs instead, or an empty string.
    """
    if os.environ.get("COMETMQ_PURE") == "1":
        return "COMETMQ_PURE=1"
    try:
        globals().update(_compiled())
    except ModuleNotFoundError as error:
        return f"{error.name} is not built"
    except ImportError as error:
        return str(error)
    return ""


#: Reason why plain Python runs; empty if the compiled core runs.
WHY_PLAIN = _choose()
#: The core that runs.
CORE: Literal["compiled", "plain"] = "plain" if WHY_PLAIN else "compiled"
#: The core that runs, with the reason for plain Python, for logs and for display.
DESCRIPTION = f"plain ({WHY_PLAIN})" if WHY_PLAIN else "compiled"
