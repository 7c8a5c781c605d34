"""The second thousand seeds, in a file of their own for a worker of their own.

`python -m tests.simulation.store.seeded 0:100000` runs as many as one likes.
"""

import pytest

from tests.simulation.store.apart import run_seeds

STRETCH = 100


@pytest.mark.parametrize("first", range(1_000, 2_000, STRETCH))
def test_nothing_acknowledged_is_lost(first: int) -> None:
    run_seeds(first, first + STRETCH)
