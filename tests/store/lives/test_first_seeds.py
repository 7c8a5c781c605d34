"""The first thousand seeds.

`python -m tests.store.lives.seeded 0:100000` runs as many as one likes.
"""

import pytest

from tests.store.lives import seeded

STRETCH = 50


@pytest.mark.parametrize("first", range(0, 1_000, STRETCH))
def test_nothing_acknowledged_is_lost(first: int) -> None:
    for seed in range(first, first + STRETCH):
        seeded.run(seed)
