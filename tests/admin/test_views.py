"""Values for people."""

from __future__ import annotations

import pytest

from cometmq.admin import views
from cometmq.protocol.bodies import ConsumeOffset


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, ""),
        (-1, ""),
        (1_700_000_000_123, "2023-11-14 22:13:20.123+00:00"),
        (4_837_492_869_153_907_061, "4837492869153907061"),
    ],
)
def test_moments(ms: int, text: str) -> None:
    assert views.moment(ms) == text


def test_a_lag_is_never_negative() -> None:
    assert views.total_lag([ConsumeOffset(10, 4, 0), ConsumeOffset(3, 5, 0)]) == 6
