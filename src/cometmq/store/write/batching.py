"""The fields that all records of a batch share.

The messages of a batch body (message/batch.py) become records of one log file with consecutive
offsets: ``append_batch`` in speedups/plain/batches.py. The batch's properties follow those of each
message, so for a name that both define the batch's value counts (upstream:
CommitLog.MessageExtBatchEncoder).
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from cometmq.core.errors import MessageIllegal
from cometmq.message.record import TRANSACTION_MASK, head_of, host_flags

_FRONT = Struct(">IIIiiqq")
_LENGTH_BYTES = 4


class Shared(NamedTuple):
    """The fields that the messages of a batch share; hosts packed, times in ms."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    properties: bytes

    def middle(self, store_ms: int) -> bytes:
        """Return the bytes of a record between its physical offset and the length of its body.

        They are the same for every record of the batch. Raises MessageIllegal for a transaction or
        a number that does not fit its field.
        """
        sys_flag, born_ms, born_host, store_host, reconsume_times, _ = self
        if sys_flag & TRANSACTION_MASK:
            raise MessageIllegal("a batch cannot be part of a transaction")
        sys_flag = sys_flag & ~0x30 | host_flags(born_host, store_host)
        try:
            head = head_of(sys_flag).pack(
                0, 0, 0, 0, 0, 0, 0, sys_flag, born_ms, born_host, store_ms, store_host,
                reconsume_times, 0, 0,
            )  # fmt: skip
        except StructError as error:
            raise MessageIllegal(f"a number does not fit its field: {error}") from None
        return head[_FRONT.size : -_LENGTH_BYTES]
