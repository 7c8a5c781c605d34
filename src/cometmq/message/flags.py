"""Bits of a message's ``sysFlag`` (upstream: MessageSysFlag.java).

0x0001 body is compressed            0x0010 bornHost is IPv6 (16 + 4 bytes)
0x0002 several tags                  0x0020 storeHost is IPv6 (16 + 4 bytes)
0x000C transaction type              0x0040 batch queue entry to unwrap (5.x)
0x0700 compression type              0x0080 inner batch (5.x)
"""

from __future__ import annotations

from enum import IntEnum

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700
_COMPRESSION_SHIFT = 8


class TransactionType(IntEnum):
    """Role of a record in a transaction: the two bits of ``TRANSACTION_MASK``."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """Compression of a body with the COMPRESSED bit (5.x; earlier releases have only zlib)."""

    ZLIB = 0
    LZ4 = 1
    ZSTD = 2


def transaction_type(sys_flag: int) -> TransactionType:
    """Return the transaction type in ``sys_flag``."""
    return TransactionType(sys_flag & TRANSACTION_MASK)


def with_transaction_type(sys_flag: int, kind: TransactionType) -> int:
    """Return ``sys_flag`` with its transaction type replaced by ``kind``."""
    return sys_flag & ~TRANSACTION_MASK | kind


def takes_queue_slot(sys_flag: int) -> bool:
    """Return whether a record has an entry in its consume queue; prepared and rollback ones do
    not.
    """
    return not sys_flag & 0x4


def compression(sys_flag: int) -> Compression:
    """Return the compression type in ``sys_flag``; 3 means zlib, as upstream writes it.

    Raises ValueError for a type that no release has.
    """
    value = (sys_flag & COMPRESSION_MASK) >> _COMPRESSION_SHIFT
    return Compression.ZLIB if value == 3 else Compression(value)
