"""Digests of entries: what changes them, and what does not."""

import numpy as np
import pytest

from cometmq.store.tools.sums import (
    Digest,
    add_digests,
    digest_of,
    hash_entries,
    hash_keys,
    join_digests,
    text_hash,
)

CHANCE = np.random.default_rng(7)
COLUMNS = [CHANCE.integers(0, 1 << 40, 50) for _ in range(6)]


def test_any_other_field_makes_another_number() -> None:
    before = hash_entries(*COLUMNS)
    for column in range(6):
        for bit in (0, 13, 39, 62):
            changed = [each.copy() for each in COLUMNS]
            changed[column][10] ^= 1 << bit
            after = hash_entries(*changed)
            assert np.flatnonzero(before != after).tolist() == [10]
            assert digest_of(after) != digest_of(before)


def test_entries_that_exchange_a_field_are_noticed() -> None:
    for column in range(1, 6):
        changed = [each.copy() for each in COLUMNS]
        changed[column][[3, 4]] = changed[column][[4, 3]]
        assert digest_of(hash_entries(*changed)) != digest_of(hash_entries(*COLUMNS))
    phys, hashes = COLUMNS[:2]
    assert digest_of(hash_keys(phys, hashes)) != digest_of(hash_keys(phys, hashes[::-1].copy()))


def test_order_means_nothing_and_parts_add_up() -> None:
    mixed = hash_entries(*COLUMNS)
    assert digest_of(mixed[::-1]) == digest_of(mixed)
    assert digest_of(mixed[:20]).plus(digest_of(mixed[20:])) == digest_of(mixed)
    assert digest_of(mixed[:0]) == Digest()
    digests = {5: Digest(1, 9)}
    add_digests(digests, mixed, np.array([0, 10, 45]), [5, 6, 5])
    assert digests[6] == digest_of(mixed[10:45])
    assert digests[5] == Digest(1, 9).plus(digest_of(mixed[:10])).plus(digest_of(mixed[45:]))
    join_digests(digests, {6: Digest(2, 3), 7: Digest(1, 1)})
    assert digests[6] == digest_of(mixed[10:45]).plus(Digest(2, 3))
    assert digests[7] == Digest(1, 1)


def test_sums_stay_in_64_bits() -> None:
    assert Digest(1, (1 << 64) - 1).plus(Digest(1, 2)) == Digest(2, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0), ("a", 6110722307022594671), ("orders", 8758467920525159094),
        ("12345678", 5695629170081155616), ("123456789", 1973133179713251253),
        ("ü漢字", 3807544891141705024), ("x" * 127, 7032673357053197818),
        ("t", 5718060554620245086), ("T", -8616676261851277202),
    ],
)  # fmt: skip
def test_a_text_has_the_hash_that_seals_on_disk_have(text: str, expected: int) -> None:
    assert text_hash(text) == expected


def test_other_texts_have_other_hashes() -> None:
    texts = [f"{letter * size}" for letter in "ab\0" for size in range(1, 40)]
    assert len(set(map(text_hash, texts))) == len(texts)
