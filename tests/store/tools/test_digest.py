"""Digests of entries: what changes them, and what does not."""

import numpy as np

from cometmq.store.tools.digest import Digest, add_parts, join, mix_entries, mix_keys, of

CHANCE = np.random.default_rng(7)
COLUMNS = [CHANCE.integers(0, 1 << 40, 50) for _ in range(6)]


def test_any_other_field_makes_another_number() -> None:
    before = mix_entries(*COLUMNS)
    for column in range(6):
        for bit in (0, 13, 39, 62):
            changed = [each.copy() for each in COLUMNS]
            changed[column][10] ^= 1 << bit
            after = mix_entries(*changed)
            assert np.flatnonzero(before != after).tolist() == [10]
            assert of(after) != of(before)


def test_entries_that_exchange_a_field_are_noticed() -> None:
    for column in range(1, 6):
        changed = [each.copy() for each in COLUMNS]
        changed[column][[3, 4]] = changed[column][[4, 3]]
        assert of(mix_entries(*changed)) != of(mix_entries(*COLUMNS))
    phys, hashes = COLUMNS[:2]
    assert of(mix_keys(phys, hashes)) != of(mix_keys(phys, hashes[::-1].copy()))


def test_order_means_nothing_and_parts_add_up() -> None:
    mixed = mix_entries(*COLUMNS)
    assert of(mixed[::-1]) == of(mixed)
    assert of(mixed[:20]).plus(of(mixed[20:])) == of(mixed)
    assert of(mixed[:0]) == Digest()
    digests = {5: Digest(1, 9)}
    add_parts(digests, mixed, np.array([0, 10, 45]), [5, 6, 5])
    assert digests[6] == of(mixed[10:45])
    assert digests[5] == Digest(1, 9).plus(of(mixed[:10])).plus(of(mixed[45:]))
    join(digests, {6: Digest(2, 3), 7: Digest(1, 1)})
    assert digests[6] == of(mixed[10:45]).plus(Digest(2, 3))
    assert digests[7] == Digest(1, 1)


def test_sums_stay_in_64_bits() -> None:
    assert Digest(1, (1 << 64) - 1).plus(Digest(1, 2)) == Digest(2, 1)
