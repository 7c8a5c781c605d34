"""What the records of a batch have in common, and batches that cannot be stored."""

from pathlib import Path

import pytest

from cometmq.core.errors import MessageIllegal
from cometmq.message import batch
from cometmq.message.batch import SharedFields
from cometmq.message.record import STORE_HOST_V6, TransactionType
from cometmq.store import messagestore as engine
from cometmq.store.messagestore import MessageStore
from tests.store.stores import BORN, STORE_HOST, assert_consistent, opened, put, shared

ONE = batch.pack([(0, b"", b"")])


def common(
    properties: bytes = b"", sys_flag: int = 0, store_host: bytes = STORE_HOST
) -> SharedFields:
    return SharedFields(sys_flag, 11, BORN, store_host, 2, properties)


def unchanged(store: MessageStore) -> bool:
    """Whether a refused batch left nothing behind."""
    queue = store.queue("t", 0)
    return not store.uncommitted and (store.log.position, queue.next_offset) == (0, 0)


@pytest.mark.parametrize(
    ("raw", "given", "problem"),
    [
        (b"", common(), "no message"),
        (b"\0\0\0\x05", common(), "batch body"),
        (ONE[:-1], common(), "batch body"),
        (batch.pack([(0, b"", bytes(20_000))]), common(bytes(13_000)), "are 33001 bytes long"),
        (ONE, common(b"", TransactionType.PREPARED), "transaction"),
        (ONE, common()._replace(born_ms=1 << 70), "does not fit"),
        (batch.pack([(0, bytes(500), b"")] * 50), common(), "a log file has 16384"),
    ],
)
def test_what_cannot_be_stored(
    tmp_path: Path, raw: bytes, given: SharedFields, problem: str
) -> None:
    store = opened(tmp_path)
    with pytest.raises(MessageIllegal, match=problem):
        store.append_batch(store.queue("t", 0), raw, given)
    assert unchanged(store)
    put(store)
    store.commit()
    assert len(assert_consistent(store)) == 1
    store.close()


def test_properties_of_a_batch_do_not_make_it_endless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BATCH_BYTES_MAX", 1_000)
    store = opened(tmp_path)
    raw = batch.pack([(0, b"", b"")] * 5)
    with pytest.raises(MessageIllegal, match="the limit is 1000"):
        store.append_batch(store.queue("t", 0), raw, common(bytes(200)))
    assert unchanged(store)
    store.append_batch(store.queue("t", 0), raw, common(bytes(80)))
    store.commit()
    assert len(assert_consistent(store)) == 5
    store.close()


def test_a_batch_lies_whole_in_the_next_file(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, body=bytes(12_000))
    many = batch.pack(
        (number, b"x%d" % number, b"UNIQ_KEY\x01u%d" % number) for number in range(50)
    )
    first, (rows, begin, stop) = store.append_batch(store.queue("t", 0), many, shared(store))
    assert (first, rows.places(begin, stop)[0]) == (1, 16_384)
    store.commit()
    assert len(assert_consistent(store)) == 51
    store.close()
    again = opened(tmp_path)
    assert len(assert_consistent(again)) == 51
    again.close()


def test_a_batch_over_ipv6(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.store_host = v6 = bytes(range(20))
    store.append_batch(store.queue("t", 0), ONE, common(store_host=v6))
    store.commit()
    (record,) = assert_consistent(store)
    assert (record.store_host, record.sys_flag & STORE_HOST_V6) == (v6, STORE_HOST_V6)
    assert (record.born_ms, record.reconsume_times) == (11, 2)
    store.close()
