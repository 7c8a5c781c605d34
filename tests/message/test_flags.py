"""The bits of sysFlag."""

import pytest

from cometmq.message import flags
from cometmq.message.flags import Compression, TransactionType


@pytest.mark.parametrize("kind", list(TransactionType))
def test_transaction_type_replaces_only_its_bits(kind: TransactionType) -> None:
    others = flags.COMPRESSED | flags.BORN_HOST_V6 | flags.COMPRESSION_MASK
    value = flags.with_transaction_type(others | TransactionType.ROLLBACK, kind)
    assert flags.transaction_type(value) is kind
    assert value & ~flags.TRANSACTION_MASK == others


def test_prepared_and_rollback_take_no_place_in_a_queue() -> None:
    listed = [kind for kind in TransactionType if flags.takes_queue_slot(kind)]
    assert listed == [TransactionType.NONE, TransactionType.COMMIT]


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (0, Compression.ZLIB),
        (0x100, Compression.LZ4),
        (0x200, Compression.ZSTD),
        (0x300, Compression.ZLIB),
    ],
)
def test_compression_type(bits: int, kind: Compression) -> None:
    assert flags.compression(bits | flags.COMPRESSED) is kind


def test_unknown_compression_type_is_an_error() -> None:
    with pytest.raises(ValueError, match="4"):
        flags.compression(0x400)
