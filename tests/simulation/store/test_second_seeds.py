"""The second thousand seeds, in a separate file, which another worker can run.

`python -m tests.simulation.store 0:100000` runs more.
"""

import pytest

from tests.simulation.store.apart import run_seeds

STRETCH = 100


@pytest.mark.parametrize("first", range(1_000, 2_000, STRETCH))
def test_nothing_acknowledged_is_lost(first: int) -> None:
    run_seeds(first, first + STRETCH)
